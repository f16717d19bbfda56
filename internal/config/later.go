package config

import (
	"fmt"
	"reflect"
)

// gate is a key that exists before the feature it belongs to.
type gate struct{ key, feature string }

// later lists the keys that this version accepts at their default only. A
// release that brings a feature deletes its lines, and nothing else.
//
// A key that would merely have no effect is in it too: somebody who sets it
// expects something.
func later() []gate {
	return []gate{
		{"state.dir", "checkpoints"},
		{"state.checkpoint_interval", "checkpoints"},
	}
}

// gated reports keys of later features that are not at their default. A key
// that is in wrong already has a fault of its own value, which comes first.
func gated(c *Config, wrong Faults) Faults {
	known := map[string]bool{}
	for _, key := range wrong.Keys() {
		known[key] = true
	}
	defaults := Default()
	now, before := newSchema(c), newSchema(&defaults)
	var faults Faults
	for _, g := range later() {
		f, d := now.byKey[g.key], before.byKey[g.key]
		if known[g.key] || sameValue(f, d) {
			continue
		}
		faults = append(faults, Fault{
			Key:     g.key,
			Problem: fmt.Sprintf("%s needs %s, which this version does not have yet", inline(f), g.feature),
			Cure:    "leave it at " + inline(d),
		})
	}
	return faults
}

func sameValue(a, b field) bool {
	if a.value.Kind() == reflect.Slice && a.value.Len() == 0 {
		return b.value.Len() == 0 // nil and empty are the same list
	}
	return reflect.DeepEqual(a.value.Interface(), b.value.Interface())
}
