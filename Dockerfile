# The agent as one static file in an empty image; the BPF objects are embedded, so
# that neither building nor running needs a C compiler or kernel headers.
#
#   docker build -t inferspan .
#   docker run --rm --privileged --pid=host -v /sys:/sys inferspan ps

FROM --platform=$BUILDPLATFORM golang:1.26.8-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG TARGETARCH
ARG VERSION=dev
RUN CGO_ENABLED=0 GOOS=linux GOARCH=$TARGETARCH \
    go build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=$VERSION" -o /out/inferspan ./cmd/tracer

FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build /out/inferspan /inferspan
ENTRYPOINT ["/inferspan"]
