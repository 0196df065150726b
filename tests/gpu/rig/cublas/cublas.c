/*
 * The cuBLAS and cuBLASLt calls that torch makes, preloaded before the real libraries.
 * Each matrix product is one launch on the driver and computes nothing. Parameters that
 * nobody reads are left out of the prototypes: the caller passes them in registers or
 * on its own stack.
 */
#include "../driver_call.h"
#include <stdint.h>
#include <string.h>

enum { SUCCESS = 0, EXECUTION_FAILED = 13 }; /* cublasStatus_t */

struct handle {
	CUstream stream;
	int math_mode, pointer_mode;
};

static int gemm(CUstream s, uint64_t m, uint64_t n)
{
	/* A name of the real library, with its tile of 128 x 128. */
	static const char name[] = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_"
				   "warpgroupsize1x1x1_execute_segment_k_off_"
				   "kernel__5x_cublas";
	CUlaunchConfig c = {
		.gridDimX = m ? (m + 127) / 128 : 1,
		.gridDimY = n ? (n + 127) / 128 : 1,
		.gridDimZ = 1,
		.blockDimX = 384,
		.blockDimY = 1,
		.blockDimZ = 1,
		.sharedMemBytes = 200000,
		.hStream = s,
	};

	return driver_run(name, c) ? EXECUTION_FAILED : SUCCESS;
}

API int cublasCreate_v2(struct handle **h)
{
	*h = calloc(1, sizeof **h);
	return SUCCESS;
}

API int cublasDestroy_v2(struct handle *h)
{
	free(h);
	return SUCCESS;
}

API int cublasSetStream_v2(struct handle *h, CUstream s)
{
	h->stream = s;
	return SUCCESS;
}

API int cublasGetStream_v2(struct handle *h, CUstream *s)
{
	*s = h->stream;
	return SUCCESS;
}

API int cublasSetWorkspace_v2(struct handle *h, void *p, size_t n)
{
	return SUCCESS;
}

API int cublasSetMathMode(struct handle *h, int mode)
{
	h->math_mode = mode;
	return SUCCESS;
}

API int cublasGetMathMode(struct handle *h, int *mode)
{
	*mode = h->math_mode;
	return SUCCESS;
}

API int cublasSetPointerMode_v2(struct handle *h, int mode)
{
	h->pointer_mode = mode;
	return SUCCESS;
}

API int cublasGetPointerMode_v2(struct handle *h, int *mode)
{
	*mode = h->pointer_mode;
	return SUCCESS;
}

API int cublasSetSmCountTarget(struct handle *h, int n)
{
	return SUCCESS;
}

API const char *cublasGetStatusString(int status)
{
	return status ? "fake cuBLAS error" : "success";
}

API int cublasSgemm_v2(struct handle *h, int a, int b, int m, int n, int k)
{
	return gemm(h->stream, m, n);
}

API int cublasHgemm(struct handle *h, int a, int b, int m, int n, int k)
{
	return gemm(h->stream, m, n);
}

API int cublasGemmEx(struct handle *h, int a, int b, int m, int n, int k)
{
	return gemm(h->stream, m, n);
}

API int cublasGemmStridedBatchedEx(struct handle *h, int a, int b, int m, int n, int k)
{
	return gemm(h->stream, m, n);
}

API int cublasSgemmStridedBatched(struct handle *h, int a, int b, int m, int n, int k)
{
	return gemm(h->stream, m, n);
}

API int cublasSgemv_v2(struct handle *h, int a, int m, int n)
{
	return gemm(h->stream, m, 1);
}

/* Descriptors of cuBLASLt: all but the shape of a matrix is dropped. */
struct layout {
	uint64_t rows, cols;
};

static int new_descriptor(void **d)
{
	*d = calloc(1, 64);
	return SUCCESS;
}

static int free_descriptor(void *d)
{
	free(d);
	return SUCCESS;
}

API int cublasLtCreate(void **h)
{
	return new_descriptor(h);
}

API int cublasLtDestroy(void *h)
{
	return free_descriptor(h);
}

API int cublasLtMatmulDescCreate(void **d, int compute, int scale)
{
	return new_descriptor(d);
}

API int cublasLtMatmulDescDestroy(void *d)
{
	return free_descriptor(d);
}

API int cublasLtMatmulDescSetAttribute(void *d, int attribute, const void *value, size_t n)
{
	return SUCCESS;
}

API int cublasLtMatmulPreferenceCreate(void **d)
{
	return new_descriptor(d);
}

API int cublasLtMatmulPreferenceDestroy(void *d)
{
	return free_descriptor(d);
}

API int cublasLtMatmulPreferenceSetAttribute(void *d, int attribute, const void *value, size_t n)
{
	return SUCCESS;
}

API int cublasLtMatrixLayoutCreate(struct layout **l, int type, uint64_t rows, uint64_t cols, int64_t stride)
{
	*l = calloc(1, sizeof **l);
	(*l)->rows = rows;
	(*l)->cols = cols;
	return SUCCESS;
}

API int cublasLtMatrixLayoutDestroy(struct layout *l)
{
	return free_descriptor(l);
}

API int cublasLtMatrixLayoutSetAttribute(struct layout *l, int attribute, const void *value, size_t n)
{
	return SUCCESS;
}

/* One algorithm: a cublasLtMatmulHeuristicResult_t of zeros, whose state means success. */
API int cublasLtMatmulAlgoGetHeuristic(void *h, void *d, void *a, void *b, void *c, void *to, void *preference,
				       int most, void *results, int *n)
{
	const size_t result_size = 104;

	memset(results, 0, result_size);
	*n = 1;
	return SUCCESS;
}

API int cublasLtMatmul(void *h, void *d, const void *alpha, const void *a, void *a_layout, const void *b,
		       void *b_layout, const void *beta, const void *c, void *c_layout, void *to,
		       struct layout *to_layout, const void *algorithm, void *workspace, size_t n, CUstream s)
{
	return gemm(s, to_layout->rows, to_layout->cols);
}
