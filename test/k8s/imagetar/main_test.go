package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// The archive is read as containerd does: from the index by digests to the files.
func TestImage(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "binary")
	if err := os.WriteFile(binary, []byte("ELF"), 0o600); err != nil {
		t.Fatal(err)
	}
	pairs := []string{"/opt/bin/tool=" + binary, "/opt/bin/other=" + binary}
	archive, err := image("localhost/tool:1", pairs)
	if err != nil {
		t.Fatal(err)
	}
	files := untar(t, archive)

	var index struct{ Manifests []descriptor }
	decode(t, files["index.json"], &index)
	if len(index.Manifests) != 1 || index.Manifests[0].Annotations["io.containerd.image.name"] != "localhost/tool:1" {
		t.Fatalf("index: %+v", index)
	}
	var manifest struct {
		Config descriptor
		Layers []descriptor
	}
	decode(t, blob(t, files, index.Manifests[0]), &manifest)
	var config struct {
		Config struct{ Entrypoint []string }
		RootFS struct {
			DiffIDs []string `json:"diff_ids"`
		}
	}
	decode(t, blob(t, files, manifest.Config), &config)
	if !slices.Equal(config.Config.Entrypoint, []string{"/opt/bin/tool"}) ||
		len(manifest.Layers) != 1 || !slices.Equal(config.RootFS.DiffIDs, []string{manifest.Layers[0].Digest}) {
		t.Errorf("configuration: %+v of %+v", config, manifest)
	}
	layer := untar(t, blob(t, files, manifest.Layers[0]))
	for _, name := range []string{"opt/", "opt/bin/", "opt/bin/tool", "opt/bin/other"} {
		if _, ok := layer[name]; !ok {
			t.Errorf("the layer has no %s", name)
		}
	}
	again, err := image("localhost/tool:1", pairs)
	if err != nil || !bytes.Equal(again, archive) {
		t.Errorf("the same files give another image (%v)", err)
	}
}

func TestImageOfNothing(t *testing.T) {
	for _, pair := range []string{"tool", "tool=x", "/tool=" + filepath.Join(t.TempDir(), "none")} {
		if _, err := image("localhost/tool:1", []string{pair}); err == nil {
			t.Errorf("%q makes an image", pair)
		}
	}
}

type descriptor struct {
	Digest      string
	Size        int
	Annotations map[string]string
}

func untar(t *testing.T, archive []byte) map[string][]byte {
	t.Helper()
	files := make(map[string][]byte)
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[header.Name] = content
	}
}

func blob(t *testing.T, files map[string][]byte, d descriptor) []byte {
	t.Helper()
	sum := sha256.Sum256(files["blobs/sha256/"+d.Digest[len("sha256:"):]])
	content := files["blobs/sha256/"+hex.EncodeToString(sum[:])]
	if "sha256:"+hex.EncodeToString(sum[:]) != d.Digest || len(content) != d.Size || d.Size == 0 {
		t.Fatalf("blob of %+v has %d bytes and %x", d, len(content), sum)
	}
	return content
}

func decode(t *testing.T, text []byte, v any) {
	t.Helper()
	if err := json.Unmarshal(text, v); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
}
