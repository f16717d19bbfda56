// Package deploy tests what joiner is deployed by outside of its chart: the
// Dockerfile, docker-compose.yaml and the files that it mounts, and the list of
// what is in the binary (SBOM).
//
// It must never need a Docker daemon or an image: what only they can tell is for
// test/image/check, and for people who have them.
package deploy
