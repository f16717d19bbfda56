package chart

import (
	"regexp"
	"strings"
	"testing"

	keda "github.com/kedacore/keda/v2/apis/keda/v1alpha1"
	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	apps "k8s.io/api/apps/v1"
	autoscaling "k8s.io/api/autoscaling/v2"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	rbac "k8s.io/api/rbac/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
)

// object is one of a rendering, in Kubernetes' own type.
type object struct {
	meta.Object
	typed runtime.Object
	text  string
}

func (o object) kind() string { return o.typed.GetObjectKind().GroupVersionKind().Kind }

func (o object) String() string { return o.kind() + " " + o.GetName() }

// decoder takes an object only if its type has every field, once each.
func decoder(t *testing.T) runtime.Decoder {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		apps.AddToScheme, autoscaling.AddToScheme, batch.AddToScheme, core.AddToScheme,
		networking.AddToScheme, policy.AddToScheme, rbac.AddToScheme,
		monitoring.AddToScheme, keda.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	return json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme, scheme, json.SerializerOptions{Yaml: true, Strict: true})
}

// decode reads a rendering, as strictly as a server with strict validation.
func decode(t *testing.T, rendering string) []object {
	t.Helper()
	d := decoder(t)
	var objects []object
	for _, text := range documents(rendering) {
		decoded, _, err := d.Decode([]byte(text), nil, nil)
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		named, ok := decoded.(meta.Object)
		if !ok {
			t.Fatalf("%T is no object", decoded)
		}
		objects = append(objects, object{Object: named, typed: decoded, text: text})
	}
	return objects
}

// documents splits a rendering, without those that hold comments only.
func documents(rendering string) (texts []string) {
	for _, text := range regexp.MustCompile(`(?m)^---$`).Split(rendering, -1) {
		bare := regexp.MustCompile(`(?m)^\s*#.*$`).ReplaceAllString(text, "")
		if strings.TrimSpace(bare) != "" {
			texts = append(texts, text)
		}
	}
	return texts
}

// pod is a pod that a rendering would run.
type pod struct {
	owner  object
	labels map[string]string
	spec   core.PodSpec
}

func pods(objects []object) (found []pod) {
	for _, o := range objects {
		switch v := o.typed.(type) {
		case *apps.StatefulSet:
			found = append(found, pod{o, v.Spec.Template.Labels, v.Spec.Template.Spec})
		case *batch.Job:
			found = append(found, pod{o, v.Spec.Template.Labels, v.Spec.Template.Spec})
		case *core.Pod:
			found = append(found, pod{o, v.Labels, v.Spec})
		}
	}
	return found
}

// only returns the one object of its type.
func only[T any](t *testing.T, objects []object) T {
	t.Helper()
	found := every[T](objects)
	if len(found) != 1 {
		t.Fatalf("%d of %T are rendered, and one is wanted", len(found), *new(T))
	}
	return found[0]
}

func every[T any](objects []object) (found []T) {
	for _, o := range objects {
		if v, ok := o.typed.(T); ok {
			found = append(found, v)
		}
	}
	return found
}
