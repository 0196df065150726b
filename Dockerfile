# The agent with NVML: linked with glibc, because the driver's library libnvidia-ml.so.1,
# which it loads if it is there, is. That library belongs to the driver of the host and is in
# no image: NVIDIA's container runtime puts it in (--gpus all, or runtimeClassName nvidia).
# Without it everything but GPU values works. The BPF objects are embedded, so that neither
# building nor running needs clang or kernel headers.
#
#   docker build -t inferspan .
#   docker run --rm --privileged --pid=host -v /sys:/sys inferspan ps
#   docker run --rm --privileged --pid=host --gpus all -v /sys:/sys inferspan check
#
# A static agent without NVML, for an empty image: make build.

FROM --platform=$BUILDPLATFORM golang:1.26.8-bookworm AS build
ARG BUILDARCH
ARG TARGETARCH
# cgo for another architecture needs its compiler.
RUN if [ "$TARGETARCH" != "$BUILDARCH" ]; then \
      case "$TARGETARCH" in \
        amd64) package=gcc-x86-64-linux-gnu libc=libc6-dev-amd64-cross ;; \
        arm64) package=gcc-aarch64-linux-gnu libc=libc6-dev-arm64-cross ;; \
      esac && \
      apt-get update && apt-get install -y --no-install-recommends $package $libc && rm -rf /var/lib/apt/lists/*; \
    fi
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=dev
RUN if [ "$TARGETARCH" != "$BUILDARCH" ]; then \
      case "$TARGETARCH" in amd64) export CC=x86_64-linux-gnu-gcc ;; arm64) export CC=aarch64-linux-gnu-gcc ;; esac; \
    fi && \
    CGO_ENABLED=1 CGO_CFLAGS="-O2 -g -Wno-deprecated-declarations" GOOS=linux GOARCH=$TARGETARCH \
    go build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=$VERSION" -o /out/inferspan ./cmd/tracer

# The release of the build image: no older glibc.
FROM debian:bookworm-slim
# What the runtime is to put in: the libraries and nvidia-smi, for all GPUs.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=utility
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build /out/inferspan /inferspan
ENTRYPOINT ["/inferspan"]
