// Command imagetar writes an image of one layer that holds static binaries, as an
// OCI archive that containerd imports:
//
//	imagetar OUT.tar NAME:TAG /path/in/image=file…     the first is what it runs
package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"runtime"
	"strings"
)

func main() {
	if len(os.Args) < 4 {
		fmt.Fprintln(os.Stderr, "usage: imagetar OUT.tar NAME:TAG /path/in/image=file…")
		os.Exit(2)
	}
	archive, err := image(os.Args[2], os.Args[3:])
	if err == nil {
		err = os.WriteFile(os.Args[1], archive, 0o644) //nolint:gosec // an image is for everybody
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "imagetar:", err)
		os.Exit(1)
	}
}

// object is JSON, whose keys encoding/json sorts: the same files give the same
// image.
type object map[string]any

// Media types of the OCI image specification 1.1.
const (
	typeLayer    = "application/vnd.oci.image.layer.v1.tar"
	typeConfig   = "application/vnd.oci.image.config.v1+json"
	typeManifest = "application/vnd.oci.image.manifest.v1+json"
	typeIndex    = "application/vnd.oci.image.index.v1+json"
)

func image(name string, pairs []string) ([]byte, error) {
	content, err := layer(pairs)
	if err != nil {
		return nil, err
	}
	entry, _, _ := strings.Cut(pairs[0], "=")

	a := newArchive()
	layerBlob := a.blob(typeLayer, content)
	config := a.blob(typeConfig, encode(object{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": object{"Entrypoint": []string{entry}, "User": "65534:65534", "WorkingDir": "/"},
		"rootfs": object{"type": "layers", "diff_ids": []any{layerBlob["digest"]}},
	}))
	manifest := a.blob(typeManifest, encode(object{
		"schemaVersion": 2, "mediaType": typeManifest, "config": config, "layers": []any{layerBlob},
	}))
	manifest["platform"] = object{"architecture": runtime.GOARCH, "os": "linux"}
	manifest["annotations"] = object{"io.containerd.image.name": name}
	a.file("index.json", encode(object{
		"schemaVersion": 2, "mediaType": typeIndex, "manifests": []any{manifest},
	}))
	a.file("oci-layout", encode(object{"imageLayoutVersion": "1.0.0"}))
	return a.finish()
}

// layer is a tar of the files, with the folders above them.
func layer(pairs []string) ([]byte, error) {
	a := newArchive()
	for _, pair := range pairs {
		inside, file, ok := strings.Cut(pair, "=")
		if !ok || !path.IsAbs(inside) {
			return nil, fmt.Errorf("%q is not /path/in/image=file", pair)
		}
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		a.folders(path.Dir(inside))
		a.executable(inside, content)
	}
	return a.finish()
}

// archive is a tar being written; the first error stays.
type archive struct {
	bytes bytes.Buffer
	tar   *tar.Writer
	known map[string]bool
	err   error
}

func newArchive() *archive {
	a := &archive{known: map[string]bool{"/": true}}
	a.tar = tar.NewWriter(&a.bytes)
	return a
}

func (a *archive) finish() ([]byte, error) {
	err := errors.Join(a.err, a.tar.Close())
	return a.bytes.Bytes(), err
}

func (a *archive) put(header *tar.Header, content []byte) {
	if a.err != nil {
		return
	}
	header.Size = int64(len(content))
	if a.err = a.tar.WriteHeader(header); a.err == nil {
		_, a.err = a.tar.Write(content)
	}
}

func (a *archive) file(name string, content []byte) {
	a.put(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644}, content)
}

func (a *archive) executable(name string, content []byte) {
	a.put(&tar.Header{Typeflag: tar.TypeReg, Name: strings.TrimPrefix(name, "/"), Mode: 0o755}, content)
}

// folders adds a folder after those that it lies in.
func (a *archive) folders(dir string) {
	if a.known[dir] {
		return
	}
	a.known[dir] = true
	a.folders(path.Dir(dir))
	a.put(&tar.Header{Typeflag: tar.TypeDir, Name: strings.TrimPrefix(dir, "/") + "/", Mode: 0o755}, nil)
}

// blob adds content under its digest and returns its descriptor.
func (a *archive) blob(mediaType string, content []byte) object {
	sum := sha256.Sum256(content)
	digest := hex.EncodeToString(sum[:])
	a.file("blobs/sha256/"+digest, content)
	return object{"mediaType": mediaType, "digest": "sha256:" + digest, "size": len(content)}
}

func encode(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // maps, texts and numbers
	}
	return text
}
