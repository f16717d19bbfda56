package chart

import (
	"bytes"
	"cmp"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// TestConfiguration runs `joiner config` for every pod of every case, with the
// files and the environment that Kubernetes would give it: a mount that is
// missing is a file that is missing. What is then in effect beyond the defaults
// is golden.
func TestConfiguration(t *testing.T) {
	eachCase(t, func(t *testing.T, c aCase, objects []object) {
		world := newWorld(t, objects)
		for _, p := range pods(objects) {
			effective := world.effective(t, p)
			if p.owner.kind() == "StatefulSet" {
				golden(t, filepath.Join(c.dir, "effective.yaml"), beyondDefaults(t, effective))
			}
		}
	})
}

// TestWholeDefaultFile puts what `joiner config --defaults` prints into the
// values as it is: the empty secrets in it are none.
func TestWholeDefaultFile(t *testing.T) {
	defaults, err := exec.Command(tools.joiner, "config", "--defaults").Output()
	if err != nil {
		t.Fatal(err)
	}
	indented := "config:\n  " + strings.ReplaceAll(strings.TrimSpace(string(defaults)), "\n", "\n  ")
	objects := decode(t, renderValues(t, indented))
	got := newWorld(t, objects).effective(t, pods(objects)[0])
	delete(got["peer"].(map[string]any), "advertise")
	want := defaultConfig(t)
	delete(want["peer"].(map[string]any), "advertise")
	if !reflect.DeepEqual(got, want) {
		t.Errorf("effective: %v\ndefaults:  %v", got, want)
	}
}

func defaultConfig(t *testing.T) map[string]any {
	t.Helper()
	cmd := exec.Command(tools.joiner, "config", "--output", "json")
	cmd.Dir = t.TempDir()
	cmd.Env = []string{}
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var c map[string]any
	if err := json.Unmarshal(out, &c); err != nil {
		t.Fatal(err)
	}
	return c
}

// beyondDefaults lists what is not as joiner has it by itself, a key a line.
func beyondDefaults(t *testing.T, effective map[string]any) string {
	t.Helper()
	defaults := flatten("", defaultConfig(t))
	var out strings.Builder
	got := flatten("", effective)
	for _, key := range slices.Sorted(maps.Keys(got)) {
		if got[key] != defaults[key] {
			fmt.Fprintf(&out, "%s: %s\n", key, got[key])
		}
	}
	return out.String()
}

func flatten(prefix string, at map[string]any) map[string]string {
	out := map[string]string{}
	for key, value := range at {
		if below, ok := value.(map[string]any); ok {
			maps.Copy(out, flatten(prefix+key+".", below))
			continue
		}
		text, _ := json.Marshal(value)
		out[prefix+key] = string(text)
	}
	return out
}

// world stands for the cluster: what lies in its ConfigMaps and Secrets.
type world struct {
	configMaps map[string]map[string]string
	secrets    map[string]map[string]string
}

func newWorld(t *testing.T, objects []object) *world {
	t.Helper()
	w := &world{
		configMaps: map[string]map[string]string{"kube-root-ca.crt": {"ca.crt": "authority"}},
		secrets:    map[string]map[string]string{},
	}
	for _, c := range every[*core.ConfigMap](objects) {
		w.configMaps[c.Name] = c.Data
	}
	for _, s := range every[*core.Secret](objects) {
		data := maps.Clone(s.StringData)
		if data == nil {
			data = map[string]string{}
		}
		for key, value := range s.Data {
			data[key] = string(value)
		}
		w.secrets[s.Name] = data
	}
	return w
}

// secret is one of the rendering, else one that its owner has made beforehand,
// with files as people make them: each ends with a newline.
func (w *world) secret(t *testing.T, name string) map[string]string {
	t.Helper()
	if own, ok := w.secrets[name]; ok {
		return own
	}
	cert, key := certificate(t)
	w.secrets[name] = map[string]string{
		"ca.crt": cert, "tls.crt": cert, "tls.key": key, "user.crt": cert, "user.key": key,
		"password": "s3cret\n", "client-secret": "s3cret\n", "api-secret": "s3cret\n", "token": "s3cret\n",
		"client-id": "joiner", "api-key": "joiner",
	}
	return w.secrets[name]
}

// effective is the configuration that joiner sees in a pod.
func (w *world) effective(t *testing.T, p pod) map[string]any {
	t.Helper()
	container := p.spec.Containers[0]
	root := t.TempDir()
	var moved []string
	mounts := slices.Clone(container.VolumeMounts)
	slices.SortFunc(mounts, func(a, b core.VolumeMount) int { return cmp.Compare(len(b.MountPath), len(a.MountPath)) })
	for _, mount := range mounts {
		w.mount(t, filepath.Join(root, mount.MountPath), volume(t, p, mount.Name))
		moved = append(moved, mount.MountPath, filepath.Join(root, mount.MountPath))
	}
	move := strings.NewReplacer(moved...)
	path := filepath.Join(root, "etc/joiner/config.yaml")
	text := read(t, path)
	if err := os.WriteFile(path, []byte(move.Replace(text)), 0o600); err != nil {
		t.Fatal(err)
	}

	cmd := exec.Command(tools.joiner, "config", "--output", "json")
	for _, arg := range container.Args {
		if strings.HasPrefix(arg, "--config=") {
			cmd.Args = append(cmd.Args, move.Replace(arg))
		}
	}
	cmd.Env = w.environment(t, p.owner.GetName()+"-0", container, move)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: joiner config: %v\n%s\n%s\n%s", p.owner, err, errs.String(), text, strings.Join(cmd.Env, "\n"))
	}
	if errs.Len() > 0 {
		t.Errorf("%s: joiner config warns: %s", p.owner, errs.String())
	}
	var effective map[string]any
	if err := json.Unmarshal(bytes.ReplaceAll(out.Bytes(), []byte(root), nil), &effective); err != nil {
		t.Fatal(err)
	}
	return effective
}

func volume(t *testing.T, p pod, name string) core.VolumeSource {
	t.Helper()
	for _, v := range p.spec.Volumes {
		if v.Name == name {
			return v.VolumeSource
		}
	}
	if p.owner.kind() == "StatefulSet" && name == "state" {
		return core.VolumeSource{EmptyDir: &core.EmptyDirVolumeSource{}} // of a claim
	}
	t.Fatalf("%s mounts %s, which is no volume of it", p.owner, name)
	return core.VolumeSource{}
}

// mount writes what a volume holds.
func (w *world) mount(t *testing.T, dir string, v core.VolumeSource) {
	t.Helper()
	switch {
	case v.ConfigMap != nil:
		w.write(t, dir, w.configMap(t, v.ConfigMap.Name), v.ConfigMap.Items)
	case v.Secret != nil:
		w.write(t, dir, w.secret(t, v.Secret.SecretName), v.Secret.Items)
	case v.EmptyDir != nil:
		w.write(t, dir, nil, nil)
	case v.Projected != nil:
		for _, source := range v.Projected.Sources {
			switch {
			case source.Secret != nil:
				w.write(t, dir, w.secret(t, source.Secret.Name), source.Secret.Items)
			case source.ConfigMap != nil:
				w.write(t, dir, w.configMap(t, source.ConfigMap.Name), source.ConfigMap.Items)
			case source.ServiceAccountToken != nil:
				w.write(t, dir, map[string]string{source.ServiceAccountToken.Path: "token"}, nil)
			case source.DownwardAPI != nil:
				w.write(t, dir, map[string]string{source.DownwardAPI.Items[0].Path: namespace}, nil)
			}
		}
	default:
		t.Fatalf("%s: a volume that this test does not know: %v", dir, v)
	}
}

func (w *world) configMap(t *testing.T, name string) map[string]string {
	t.Helper()
	data, ok := w.configMaps[name]
	if !ok {
		t.Fatalf("no ConfigMap %s is rendered", name)
	}
	return data
}

func (w *world) write(t *testing.T, dir string, data map[string]string, items []core.KeyToPath) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if items == nil {
		for key := range data {
			items = append(items, core.KeyToPath{Key: key, Path: key})
		}
	}
	for _, item := range items {
		text, ok := data[item.Key]
		if !ok {
			t.Fatalf("%s: the key %s is missing", dir, item.Key)
		}
		if err := os.WriteFile(filepath.Join(dir, item.Path), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// environment is what Kubernetes would make of a container's env and envFrom.
func (w *world) environment(t *testing.T, pod string, c core.Container, move *strings.Replacer) []string {
	t.Helper()
	known := map[string]string{}
	environ := []string{}
	for _, from := range c.EnvFrom {
		for key, value := range w.configMap(t, from.ConfigMapRef.Name) {
			environ = append(environ, key+"="+value)
		}
	}
	for _, v := range c.Env {
		value := v.Value
		for name, text := range known {
			value = strings.ReplaceAll(value, "$("+name+")", text)
		}
		if ref := v.ValueFrom; ref != nil && ref.FieldRef != nil {
			value = map[string]string{"metadata.name": pod}[ref.FieldRef.FieldPath]
		} else if ref != nil && ref.SecretKeyRef != nil {
			value = w.secret(t, ref.SecretKeyRef.Name)[ref.SecretKeyRef.Key]
		}
		known[v.Name] = value
		environ = append(environ, v.Name+"="+move.Replace(value))
	}
	return environ
}

// certificate is one that signs itself, and its key.
func certificate(t *testing.T) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	about := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "joiner"},
		NotAfter: time.Now().Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, about, about, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	encode := func(kind string, b []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b}))
	}
	return encode("CERTIFICATE", der), encode("PRIVATE KEY", secret)
}

// asMap reads YAML of no known type.
func asMap(t *testing.T, text string) map[string]any {
	t.Helper()
	var m map[string]any
	if err := yaml.Unmarshal([]byte(text), &m); err != nil {
		t.Fatal(err)
	}
	return m
}
