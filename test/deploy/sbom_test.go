package deploy

import (
	"debug/buildinfo"
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

var (
	sbomFile   = flag.String("sbom", "", "the list to look into, CycloneDX JSON")
	binaryFile = flag.String("binary", "", "the binary that it is of")
)

// bom is what is looked at of a CycloneDX document.
type bom struct {
	Format   string `json:"bomFormat"`
	Spec     string `json:"specVersion"`
	Serial   string `json:"serialNumber"`
	Metadata struct {
		Timestamp string
		Component component
	}
	Components   []component
	Dependencies []struct {
		Ref       string
		DependsOn []string
	}
}

type component struct {
	Ref                 string `json:"bom-ref"`
	Type, Name, Version string
	PURL                string `json:"purl"`
	Licenses            []struct {
		License struct{ ID, Name string }
	}
	Hashes []struct{ Alg, Content string }
}

// unnamed are components whose licence the tool cannot tell: their texts are no
// templates of SPDX's, word by word.
func unnamed() map[string]string {
	return map[string]string{
		"std":                            "BSD-3-Clause, in Go's own tree",
		"github.com/rcrowley/go-metrics": "BSD-2-Clause-Views, under another name",
	}
}

// TestSBOM holds the list against the binary, which knows by itself of what it
// was linked.
func TestSBOM(t *testing.T) {
	if *sbomFile == "" || *binaryFile == "" {
		t.Skip("no -sbom and -binary: make test-sbom makes them")
	}
	text, err := os.ReadFile(*sbomFile)
	if err != nil {
		t.Fatal(err)
	}
	var b bom
	if err := json.Unmarshal(text, &b); err != nil {
		t.Fatal(err)
	}
	info, err := buildinfo.ReadFile(*binaryFile)
	if err != nil {
		t.Fatal(err)
	}

	t.Run("form", func(t *testing.T) {
		if b.Format != "CycloneDX" || !regexp.MustCompile(`^1\.[5-9]$`).MatchString(b.Spec) {
			t.Errorf("%s %s", b.Format, b.Spec)
		}
		if b.Serial != "" || b.Metadata.Timestamp != "" {
			t.Errorf("serial %q, timestamp %q: the same binary would have another list each time", b.Serial, b.Metadata.Timestamp)
		}
		if c := b.Metadata.Component; c.Type != "application" || c.Name != info.Main.Path || c.Version != version(t) {
			t.Errorf("it is of %+v, and the binary is %s %s", c, info.Main.Path, version(t))
		}
	})
	t.Run("components", func(t *testing.T) { namesAll(t, b.Components, info) })
	t.Run("licences", func(t *testing.T) {
		known := unnamed()
		for _, c := range b.Components {
			if len(c.Licenses) == 0 && known[c.Name] == "" {
				t.Errorf("%s has no licence", c.Name)
			}
		}
	})
	t.Run("dependencies", func(t *testing.T) {
		refs := make(map[string]bool)
		for _, c := range b.Components {
			refs[c.Ref] = true
		}
		direct := 0
		for _, d := range b.Dependencies {
			if d.Ref == b.Metadata.Component.Ref {
				direct = len(d.DependsOn)
			}
			for _, on := range d.DependsOn {
				if !refs[on] {
					t.Errorf("%s depends on %s, which is no component", d.Ref, on)
				}
			}
		}
		if direct == 0 {
			t.Error("the binary depends on nothing")
		}
	})
}

// version is what the binary calls itself.
func version(t *testing.T) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), *binaryFile, "version", "-o", "json").Output()
	if err != nil {
		t.Fatal(err)
	}
	var v struct{ Version string }
	if err := json.Unmarshal(out, &v); err != nil {
		t.Fatal(err)
	}
	return v.Version
}

func namesAll(t *testing.T, components []component, info *buildinfo.BuildInfo) {
	want := map[string]string{"std": info.GoVersion}
	for _, dep := range info.Deps {
		if dep.Replace != nil {
			dep = dep.Replace
		}
		want[dep.Path] = dep.Version
	}
	for _, c := range components {
		version, ok := want[c.Name]
		switch {
		case !ok:
			t.Errorf("%s %s is not in the binary, or twice in the list", c.Name, c.Version)
		case c.Version != version:
			t.Errorf("%s is %s in the list and %s in the binary", c.Name, c.Version, version)
		}
		if !strings.HasPrefix(c.PURL, "pkg:golang/"+c.Name+"@"+c.Version) {
			t.Errorf("%s %s goes by %s", c.Name, c.Version, c.PURL)
		}
		if c.Name != "std" && len(c.Hashes) == 0 {
			t.Errorf("%s has no hash", c.Name)
		}
		delete(want, c.Name)
	}
	for name, version := range want {
		t.Errorf("%s %s is in the binary and not in the list", name, version)
	}
}
