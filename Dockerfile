# joiner: a static binary and CA certificates, nothing else.
#
#   docker build -t joiner --build-arg VERSION=… --build-arg COMMIT=… .
#
# Both base images are arguments, for registries of one's own.
ARG GO_IMAGE=golang:1.26-bookworm
ARG BASE_IMAGE=scratch

FROM --platform=${BUILDPLATFORM:-linux/amd64} ${GO_IMAGE} AS build
ARG GOPROXY=
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG TARGETOS=linux
ARG TARGETARCH
ARG VERSION=0.1.0-dev
ARG COMMIT=unknown
RUN CGO_ENABLED=0 GOOS="${TARGETOS}" GOARCH="${TARGETARCH}" go build -trimpath \
    -ldflags "-s -w -X main.version=${VERSION} -X main.commit=${COMMIT}" \
    -o /out/joiner ./cmd/joiner

FROM ${BASE_IMAGE}
ARG VERSION=0.1.0-dev
ARG COMMIT=unknown
LABEL org.opencontainers.image.title="joiner" \
      org.opencontainers.image.description="Joins notifications with the newest market price of their symbol, locally, on Kafka" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${COMMIT}"
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /out/joiner /joiner
# A config.yaml mounted here is found without a flag.
WORKDIR /etc/joiner
# A number, so that Kubernetes can tell that it is not root.
USER 65532:65532
EXPOSE 8080
ENTRYPOINT ["/joiner"]
CMD ["run"]
