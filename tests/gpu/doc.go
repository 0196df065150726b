// Package gpu tests the rig in rig/, on which the CUDA builds of engines run without a
// GPU. The engines on it are tested in tests/e2e.
//
// The tests run with INFERSPAN_GPU=1, after "make rig".
package gpu
