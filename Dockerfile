# joiner: a static binary and CA certificates, nothing else.
#
#   docker build -t joiner --build-arg VERSION=… --build-arg COMMIT=… .
#   docker buildx build --platform linux/amd64,linux/arm64 … .
#
# Go crosses over to other architectures by itself, so the first stage always
# runs on the builder's own and nothing is emulated. Both base images are
# arguments, for registries of one's own.
ARG GO_IMAGE=golang:1.26-bookworm
ARG BASE_IMAGE=scratch

FROM --platform=${BUILDPLATFORM:-linux/amd64} ${GO_IMAGE} AS build
ARG GOPROXY=
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
# Of the platform that is built for. The builder sets them, which a default here
# would undo.
ARG TARGETOS
ARG TARGETARCH
ARG TARGETVARIANT
ARG VERSION=0.1.0-dev
ARG COMMIT=unknown
RUN CGO_ENABLED=0 GOOS="${TARGETOS:-linux}" GOARCH="${TARGETARCH}" GOARM="${TARGETVARIANT#v}" \
    go build -trimpath -buildvcs=false -pgo cmd/joiner/cpu.pgo \
    -ldflags "-s -w -X main.version=${VERSION} -X main.commit=${COMMIT}" \
    -o /out/joiner ./cmd/joiner
# An empty directory, which is all that WORKDIR makes.
WORKDIR /out/state

FROM ${BASE_IMAGE}
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /out/joiner /joiner
# For state.dir: a volume that is mounted here belongs to the user. The root
# file system can be read-only, with or without one.
COPY --from=build --chown=65532:65532 /out/state /var/lib/joiner
# A config.yaml mounted here is found without a flag.
WORKDIR /etc/joiner
# A number, so that Kubernetes can tell that it is not root.
USER 65532:65532
# Probes, metrics and pages; requests between pods.
EXPOSE 8080 8081
ENTRYPOINT ["/joiner"]
CMD ["run"]
# At the end, since they differ from build to build. CREATED is the time of the
# commit (RFC 3339): the same source makes the same image. Where your copy of the
# source lies you can add: --label org.opencontainers.image.source=…
ARG VERSION=0.1.0-dev
ARG COMMIT=unknown
ARG CREATED=1970-01-01T00:00:00Z
LABEL org.opencontainers.image.title="joiner" \
      org.opencontainers.image.description="Joins notifications with the newest market price of their symbol, locally, on Kafka" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${COMMIT}" \
      org.opencontainers.image.created="${CREATED}"
