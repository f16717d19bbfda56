package config

import (
	"reflect"
	"strings"
)

// EnvPrefix begins the name of every environment variable of the
// configuration.
const EnvPrefix = "JOINER_"

// field is one key of the configuration, found by walking Config.
type field struct {
	key   string   // dotted path, as in kafka.tls.enabled
	doc   string   // one line of meaning
	words []string // the words that it, or each of its elements, accepts; none: any
	depth int      // how many sections it lies in
	group bool     // a section, not a leaf
	// derived: what holds where nobody sets it depends on another key, so a line
	// with the default would not mean the same as none.
	derived bool
	value   reflect.Value
}

// name is the last part of the key.
func (f field) name() string { return f.key[strings.LastIndexByte(f.key, '.')+1:] }

// EnvName returns the environment variable that sets key.
func EnvName(key string) string {
	return EnvPrefix + strings.ToUpper(strings.ReplaceAll(key, ".", "_"))
}

// Keys returns every key in the order of the documented file.
func Keys() []string {
	var keys []string
	c := Default()
	for _, f := range leaves(&c) {
		keys = append(keys, f.key)
	}
	return keys
}

// leaves returns the fields of c that hold a value, in order. Their values are
// addressable.
func leaves(c *Config) []field {
	var out []field
	for _, f := range fields(c) {
		if !f.group {
			out = append(out, f)
		}
	}
	return out
}

// fields returns the sections and leaves of c in order, each section before
// what it holds.
func fields(c *Config) []field { return walk(reflect.ValueOf(c).Elem(), "", 0) }

func walk(v reflect.Value, prefix string, depth int) []field {
	var out []field
	for i := range v.NumField() {
		tag := v.Type().Field(i).Tag
		f := field{
			key:     prefix + tag.Get("mapstructure"),
			doc:     tag.Get("doc"),
			words:   strings.Fields(tag.Get("enum")),
			depth:   depth,
			group:   v.Field(i).Kind() == reflect.Struct,
			derived: tag.Get("derived") != "",
			value:   v.Field(i),
		}
		out = append(out, f)
		if f.group {
			out = append(out, walk(f.value, f.key+".", depth+1)...)
		}
	}
	return out
}

// schema finds fields by key.
type schema struct {
	byKey    map[string]field
	order    map[string]int
	keys     []string // leaves only
	sections []string
}

func newSchema(c *Config) schema {
	s := schema{byKey: map[string]field{}, order: map[string]int{}}
	for i, f := range fields(c) {
		s.byKey[f.key] = f
		s.order[f.key] = i
		if f.group {
			s.sections = append(s.sections, f.key)
			continue
		}
		s.keys = append(s.keys, f.key)
	}
	return s
}
