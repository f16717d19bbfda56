# `make` alone lists the targets. What a target needs and the machine lacks
# (Java, Maven, kcat, …) is installed by test/install from Debian's packages;
# what is downloaded is kept in $(JOINER_CACHE).

SHELL        := /bin/bash
.SHELLFLAGS  := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS    += --no-print-directory

export JOINER_CACHE ?= $(HOME)/.cache/joiner

VERSION ?= $(shell git describe --tags --match 'v*' --dirty 2>/dev/null || echo 0.1.0-dev)
COMMIT  ?= $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X main.version=$(VERSION) -X main.commit=$(COMMIT)

# golangci-lint is built from its source, once: about three minutes on two busy
# cores, which the fifty minutes of a cold CI run bear; its own proxy-built
# version is exact, where a package of the distribution would be any.
GOLANGCI_VERSION := v2.15.0
GOLANGCI := $(JOINER_CACHE)/golangci-lint-$(GOLANGCI_VERSION)/golangci-lint

# Helm and helm-docs, which makes the chart's README, are built from their
# modules likewise: three minutes, once. Helm has to be told at its build which
# Kubernetes it speaks for (that of its k8s.io/client-go).
HELM_VERSION := v3.22.0
HELM_KUBERNETES := 37
HELM := $(JOINER_CACHE)/helm-$(HELM_VERSION)/helm
HELM_LDFLAGS := -s -w -X helm.sh/helm/v3/internal/version.version=$(HELM_VERSION) \
	$(foreach p,pkg/lint/rules pkg/chartutil,-X helm.sh/helm/v3/$(p).k8sVersionMajor=1 -X helm.sh/helm/v3/$(p).k8sVersionMinor=$(HELM_KUBERNETES))
HELM_DOCS_VERSION := v1.14.2
HELM_DOCS := $(JOINER_CACHE)/helm-docs-$(HELM_DOCS_VERSION)/helm-docs

# The list of what is in the binary (SBOM), in CycloneDX's form: by their own tool
# for Go, which is small and reads the binary itself.
CYCLONEDX_VERSION := v1.10.0
CYCLONEDX := $(JOINER_CACHE)/cyclonedx-gomod-$(CYCLONEDX_VERSION)/cyclonedx-gomod

SCRIPTS := .ci/run test/install test/timed test/bench/profile test/chart/render $(wildcard test/image/*) \
	$(filter-out %.xml,$(wildcard test/kafka/*)) \
	$(addprefix test/k8s/,lib.sh api build crds down dryrun env load run up node/regenerate)

# Tests on a real cluster are those named TestKafka…; only their packages run.
KAFKA_PACKAGES = $(shell grep -rl --include='*_test.go' '^func TestKafka' cmd internal test 2>/dev/null | xargs -r -n 1 dirname | sort -u | sed 's|^|./|')

TIMED = @test/timed $@

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## Join 30 notifications under each assignment strategy, without Kafka
	$(TIMED) go run ./cmd/joiner demo

.PHONY: test
test: ## Everything: lint, unit, command-line and embedded tests, real Kafka, faults
	$(TIMED) $(MAKE) test-tools lint test-unit test-chart test-chart-server test-page test-mixin test-compose test-sbom test-kafka test-faults

.PHONY: test-tools
test-tools:
	$(TIMED) test/install cc java maven kcat promtool prometheus shellcheck chromium docker-compose

.PHONY: test-unit
test-unit: ## Unit, property, script and embedded-broker tests, race detector on
	@test/install cc promtool
	$(TIMED) env PATH="$(JOINER_CACHE)/bin:$$PATH" go test -race -short -timeout 20m ./...

.PHONY: test-chart
test-chart: $(HELM) $(HELM_DOCS) ## The Helm chart, by Helm and by Kubernetes' own types, without a cluster
	@test/install promtool
	$(TIMED) env HELM=$(HELM) HELM_DOCS=$(HELM_DOCS) go -C test/chart test -count=1 -timeout 15m ./...

# Ten minutes the first time, for building the API server; half a minute after that.
.PHONY: test-chart-server
test-chart-server: $(HELM) ## The Helm chart's objects, by a real API server that takes or refuses them
	@test/install openssl
	$(TIMED) env HELM=$(HELM) test/k8s/api test/k8s/dryrun

# Not part of `make test`: half an hour. RUN selects scenarios, AWAY is for how
# long brokers are gone.
.PHONY: test-k8s
test-k8s: $(HELM) ## The chart installed on a real Kubernetes of one node (root); RUN=TestK8s/Scaled AWAY=10m
	@test/install cc java maven buildah
	$(TIMED) env HELM=$(HELM) $(if $(AWAY),JOINER_K8S_AWAY=$(AWAY)) test/k8s/run $(if $(RUN),'$(RUN)')

.PHONY: profile
profile: ## Measure anew what the compiler optimises by (cmd/joiner/cpu.pgo), on a quiet machine
	@test/install java maven curl
	$(MAKE) build
	$(TIMED) test/bench/profile $(PGO)

.PHONY: chart-docs
chart-docs: $(HELM_DOCS) ## Write the chart's README from its values
	$(TIMED) $(HELM_DOCS) --chart-search-root deploy/helm --sort-values-order file --skip-version-footer

.PHONY: test-page
test-page: ## The status page in a real headless Chromium; PAGE_PICTURES=DIR leaves pictures
	@test/install cc chromium
	$(TIMED) go test -race -count=1 -v -timeout 10m -run '^TestChromium' ./test/page

.PHONY: test-mixin
test-mixin: ## Dashboard and alerts: promtool, and a real Prometheus that scrapes a group
	@test/install cc promtool prometheus
	$(TIMED) env PATH="$(JOINER_CACHE)/bin:$$PATH" \
		go test -race -count=1 -timeout 10m ./test/mixin

.PHONY: test-compose
test-compose: ## docker-compose.yaml and what it mounts, by docker-compose and promtool, without a daemon
	@test/install promtool docker-compose
	$(TIMED) env PATH="$(JOINER_CACHE)/bin:$$PATH" go test -count=1 -timeout 5m -run '^Test(Compose|Image)' ./test/deploy

.PHONY: test-sbom
test-sbom: sbom ## Whether the SBOM names what is in the binary, all of it and nothing else
	$(TIMED) go test -count=1 -timeout 5m -run '^TestSBOM$$' ./test/deploy -sbom $(CURDIR)/$(SBOM) -binary $(CURDIR)/bin/joiner

# A test that watches something stay as it is does so for longer under LONG=1.
ifneq ($(LONG),)
export JOINER_E2E_TICKS ?= 60s
endif

# Two packages at a time: the others' tests wait for their brokers much of the
# time, and are over when those of test/e2e are in the midst of theirs.
.PHONY: test-kafka
test-kafka: ## End-to-end tests on Apache Kafka brokers started for them; LONG=1 for the long form
	@test/install cc java maven kcat promtool
	$(TIMED) env PATH="$(JOINER_CACHE)/bin:$$PATH" test/kafka/with \
		go test -race -count=1 -p 2 -v -timeout 40m -run '^TestKafka' $(KAFKA_PACKAGES)

# One round of faults under each guarantee, the mutants and the rest; with
# GUARANTEE only the rounds under that one. A long form is
#   make test-faults ROUNDS=20 GUARANTEE=exactly_once FAULT_FLAGS='-rate 1200 -round 40s -total 1000000'
ROUNDS ?= 1
FAULT_FLAGS ?=

.PHONY: test-faults
test-faults: ## Pods, brokers and connections broken under load; ROUNDS=20 GUARANTEE=exactly_once FAULT_SEED=1
	@test/install java maven
	$(TIMED) go test -count=1 -v -timeout $$((20 + 5 * $(ROUNDS)))m -run '^TestFaults$$' ./test/faults \
		-rounds $(ROUNDS) $(if $(GUARANTEE),-guarantee $(GUARANTEE)) $(FAULT_FLAGS)
ifneq ($(ROUNDS),1) # one broker, then all, away for a minute; test-kafka has it shorter
	$(TIMED) env JOINER_TEST_AWAY=60s go test -count=1 -v -timeout 20m -run '^TestKafkaBrokersAway$$' ./test/e2e
endif

.PHONY: bench
bench: build ## Go benchmarks, then the joiner beside a bare consumer loop on a real broker
	@test/install java maven
	$(TIMED) go test -run '^$$' -bench . -benchmem -timeout 30m ./...
	@test/timed $@-end-to-end env KAFKA_JVM= go run ./test/bench -joiner bin/joiner $(BENCH_FLAGS)

.PHONY: lint
lint: tidy-check $(GOLANGCI) ## Static checks of Go and of the scripts
	@test/install shellcheck
	$(TIMED) $(GOLANGCI) run ./...
	@test/timed $@-chart bash -c 'cd test/chart && $(GOLANGCI) run ./...'
	@test/timed $@-scripts shellcheck --external-sources --source-path=$(CURDIR) $(SCRIPTS)

.PHONY: tidy-check
tidy-check: ## Whether go.mod and go.sum are what `go mod tidy` would write
	$(TIMED) go mod tidy -diff
	@test/timed $@-chart go -C test/chart mod tidy -diff

.PHONY: fmt
fmt: $(GOLANGCI) ## Format the Go code
	$(TIMED) $(GOLANGCI) fmt ./...

# What the joiner spends its time on when it catches up: the compiler optimises by
# it. It is not called default.pgo, since tests, vet and the linter would then
# compile everything once more.
PGO := cmd/joiner/cpu.pgo

.PHONY: build
build: ## Build bin/joiner, static
	$(TIMED) env CGO_ENABLED=0 go build -trimpath -pgo $(PGO) -ldflags '$(LDFLAGS)' -o bin/joiner ./cmd/joiner

IMAGE ?= joiner:$(VERSION)

SBOM ?= bin/joiner.cdx.json

# Neither time nor serial number: the same binary has the same list.
.PHONY: sbom
sbom: build $(CYCLONEDX) ## List what is in bin/joiner, with licences, as CycloneDX JSON: bin/joiner.cdx.json
	$(TIMED) $(CYCLONEDX) bin -json -std -licenses -assert-licenses -noserial -notimestamp \
		-version '$(VERSION)' -output $(SBOM) bin/joiner

.PHONY: image
image: ## Build the container image with docker or buildah; PLATFORMS=linux/amd64,linux/arm64
	$(TIMED) test/image/build $(IMAGE) \
		--build-arg VERSION=$(VERSION) --build-arg COMMIT=$(COMMIT) $(IMAGE_FLAGS)

.PHONY: test-image
test-image: ## Build the image on a local stand-in for its base, and look into it
	@test/install buildah
	$(TIMED) test/image/check

$(GOLANGCI):
	@mkdir -p $(@D)
	@test/timed golangci-lint-install env GOBIN=$(@D) GOFLAGS= \
		go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_VERSION)

$(HELM):
	@mkdir -p $(@D)
	@test/timed helm-install env GOBIN=$(@D) GOFLAGS= CGO_ENABLED=0 \
		go install -ldflags '$(HELM_LDFLAGS)' helm.sh/helm/v3/cmd/helm@$(HELM_VERSION)

$(CYCLONEDX):
	@mkdir -p $(@D)
	@test/timed cyclonedx-gomod-install env GOBIN=$(@D) GOFLAGS= CGO_ENABLED=0 \
		go install github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@$(CYCLONEDX_VERSION)

$(HELM_DOCS):
	@mkdir -p $(@D)
	@test/timed helm-docs-install env GOBIN=$(@D) GOFLAGS= CGO_ENABLED=0 \
		go install github.com/norwoodj/helm-docs/cmd/helm-docs@$(HELM_DOCS_VERSION)
