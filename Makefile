# "make help" lists the targets.

GO          ?= go
CLANG_MAJOR := 14
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.1
VERSION     ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
ENGINE      := tests/engines/vllm
GOTEST      := $(GO) run ./scripts/gotest
BPF_SOURCES  = $(wildcard bpf/*.c bpf/include/*.h)
RIG_SOURCES  = $(wildcard tests/gpu/rig/*.h tests/gpu/rig/*/*.[ch])

export CGO_ENABLED = 0

.DEFAULT_GOAL := help

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "%-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## the program: bin/inferspan, static, BPF objects embedded, without NVML
	$(GO) build -trimpath -ldflags '-X main.version=$(VERSION)' -o bin/inferspan ./cmd/tracer
	$(GO) build -trimpath -o bin/workload ./tests/workload/cmd/workload

# go-nvml wraps calls that NVIDIA has deprecated, which the compiler says of each.
NVML_BUILD = CGO_ENABLED=1 CGO_CFLAGS="-O2 -g -Wno-deprecated-declarations"

.PHONY: build-nvml
build-nvml: ## the program with NVML: bin/inferspan, dynamic, glibc (needs a C compiler)
	$(NVML_BUILD) $(GO) build -trimpath -ldflags '-X main.version=$(VERSION)' -o bin/inferspan ./cmd/tracer

.PHONY: test-nvml
test-nvml: rig ## what needs cgo: NVML, on the fake library of the rig (needs a C compiler)
	$(NVML_BUILD) $(GO) vet ./gpu/... ./agent ./cmd/...
	$(NVML_BUILD) INFERSPAN_GPU=1 $(GOTEST) -count=1 ./gpu/... ./agent
	$(NVML_BUILD) INFERSPAN_GPU=1 $(GOTEST) -count=1 -run NVML ./tests/gpu

.PHONY: test
test: test-unit test-e2e ## every test but the long ones (root; installs real engines)

.PHONY: test-unit
test-unit: pythons ## tests that need no engine
	$(GOTEST) -count=1 -timeout 20m $$($(GO) list ./... | grep -v /tests/e2e)

.PHONY: test-e2e
test-e2e: build engine engine-sglang ## the real engines, traced (root)
	INFERSPAN_E2E=1 $(GOTEST) -v -count=1 -timeout 60m ./tests/e2e/...

.PHONY: test-vm
test-vm: ## the BPF programs on Debian kernels 5.10, 6.1 and 6.12, emulated (fetches kernels; some minutes)
	tests/vm/run.sh

.PHONY: pythons
pythons: ## install the interpreters for tests into the cache folder
	tests/pythons/install.sh

.PHONY: chaos
chaos: pythons ## read interpreters that change all the time, DURATION in all, by default 10m
	INFERSPAN_CHAOS=$(or $(DURATION),10m) $(GOTEST) -v -count=1 -timeout 120m -run '^TestChaos$$' ./probes/python

.PHONY: engine
engine: ## install the real engine for tests into the cache folder
	$(ENGINE)/install.sh

.PHONY: engine-sglang
engine-sglang: ## install SGLang for tests, SGLANG=0.5.23 or 0.5.5 (with PD=1 its KV transfer too)
	VERSION=$(or $(SGLANG),0.5.23) tests/engines/sglang/install.sh

.PHONY: rig
rig: ## build the fake GPU for tests into the cache folder
	tests/gpu/rig/build.sh

.PHONY: engine-cuda
engine-cuda: ## install vLLM for CUDA, which runs on the fake GPU (7 GB)
	tests/engines/vllm-cuda/install.sh

.PHONY: engine-sglang-cuda
engine-sglang-cuda: ## install SGLang for CUDA, which runs on the fake GPU (10 GB)
	tests/engines/sglang-cuda/install.sh

.PHONY: test-gpu
test-gpu: build engine-cuda engine-sglang-cuda ## vLLM and SGLang for CUDA on the fake GPU, traced (root)
	INFERSPAN_GPU=1 $(GOTEST) -count=1 ./tests/gpu
	INFERSPAN_GPU=1 $(GOTEST) -v -count=1 -timeout 60m -run '^TestGPU' ./tests/e2e

.PHONY: captures
captures: build engine ## record the scenarios again: tests/captures/*.isr and their goldens (root)
	tests/captures/make.sh

.PHONY: demo
demo: build engine ## trace a real engine under traffic and print the summary (root)
	scripts/demo.sh

.PHONY: bench
bench: ## benchmarks of the pipeline on recordings
	$(GO) test -run '^$$' -bench . -benchmem -timeout 60m ./...

.PHONY: generate
generate: ## BPF objects and generated Go (needs clang and llvm-strip 14)
	@have=$$(clang --version | sed -n 's/.*version \([0-9]*\).*/\1/p'); [ "$$have" = $(CLANG_MAJOR) ] || { \
	  echo "generate: the committed objects are made with clang $(CLANG_MAJOR), this is clang '$$have'" >&2; exit 1; }
	$(GO) generate ./...

.PHONY: check-generate
check-generate: ## generate again and fail if anything committed differs
	scripts/check-generate.sh

.PHONY: lint
lint: ## gofmt, go vet, staticcheck, clang-format, shell syntax
	@bad=$$(gofmt -l .); [ -z "$$bad" ] || { echo "gofmt: $$bad" >&2; exit 1; }
	$(GO) vet ./...
	$(GO) -C tests/collector vet ./...
	$(GO) run $(STATICCHECK) ./...
	@if [ -n "$(BPF_SOURCES)" ]; then clang-format --dry-run -Werror $(BPF_SOURCES) $(RIG_SOURCES); fi
	@for f in $$(git ls-files '*.sh' .ci/run); do bash -n $$f || exit 1; done

.PHONY: image
image: ## container image
	docker build --build-arg VERSION=$(VERSION) -t inferspan:$(VERSION) .

.PHONY: clean
clean: ## remove what the targets above made in the tree
	rm -rf bin out
