package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"

	"go.yaml.in/yaml/v3"
)

// document reads a configuration file. It works on YAML's nodes and takes
// scalars as they are written, because a decoder would turn the version 4.0
// into the number 4 and the client id 007 into 7 before anybody could object,
// and because a fault can then name its line.
type document struct {
	name   string // for people
	schema schema
	faults Faults
	set    func(f field, value any, source string)
}

// read takes every value out of a file's bytes.
func (d *document) read(text []byte) {
	root, ok := d.parse(text)
	if !ok || root == nil {
		return
	}
	if resolve(root).Kind != yaml.MappingNode {
		d.fault(root.Line, "", "the file holds no keys", "see `joiner config --defaults` for its form")
		return
	}
	d.section("", root)
}

// parse returns the file's only document, nil where the file is empty.
func (d *document) parse(text []byte) (*yaml.Node, bool) {
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	var root, more yaml.Node
	switch err := decoder.Decode(&root); {
	case errors.Is(err, io.EOF):
		return nil, true
	case err != nil:
		return nil, d.broken(err)
	}
	if err := decoder.Decode(&more); !errors.Is(err, io.EOF) {
		if err != nil {
			return nil, d.broken(err)
		}
		d.fault(more.Line, "", "a second document begins here", "keep one document in the file")
		return nil, false
	}
	if len(root.Content) == 0 || isNull(root.Content[0]) {
		return nil, true
	}
	return root.Content[0], true
}

func (d *document) broken(err error) bool {
	d.faults = append(d.faults, Fault{Problem: "the file is not YAML: " + err.Error(), Cure: "see `joiner config --defaults` for its form", Source: d.name})
	return false
}

// section reads the keys of one section; prefix is its path with a dot.
func (d *document) section(prefix string, node *yaml.Node) {
	node = resolve(node)
	if node.Kind != yaml.MappingNode {
		d.fault(node.Line, strings.TrimSuffix(prefix, "."), "is a section, and here it has a value instead of keys", "write its keys below it, indented")
		return
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(node.Content); i += 2 {
		name, value := node.Content[i], resolve(node.Content[i+1])
		key := prefix + name.Value
		if seen[key] {
			d.fault(name.Line, key, "is written twice", "keep one of the two")
			continue
		}
		seen[key] = true
		d.entry(key, name.Line, value)
	}
}

func (d *document) entry(key string, line int, value *yaml.Node) {
	f, known := d.schema.byKey[key]
	if !known {
		d.faults = append(d.faults, d.schema.unknown(key, d.at(line)))
		return
	}
	if isNull(value) {
		d.null(f, line)
		return
	}
	if f.group {
		d.section(key+".", value)
		return
	}
	d.leaf(f, line, value)
}

// null refuses a leaf without a value: whoever writes `dead_letters:` means
// either the default or nothing at all, and the two are opposites. A section
// without keys has only one meaning.
func (d *document) null(f field, line int) {
	if f.group {
		return
	}
	cure := "give one, or leave the line out for the default"
	if f.value.Kind() == reflect.String {
		cure = `write "" for an empty text, or leave the line out for the default`
	}
	d.fault(line, f.key, "has no value", cure)
}

func (d *document) leaf(f field, line int, node *yaml.Node) {
	var value any
	var wrong *problem
	switch node.Kind {
	case yaml.ScalarNode:
		value, wrong = parse(f, node.Value)
	case yaml.SequenceNode:
		value, wrong = d.list(f, node)
	default:
		wrong = &problem{"has keys below it, and takes a value", "write the value behind the colon"}
	}
	if wrong != nil {
		d.fault(line, f.key, wrong.what, wrong.cure)
		return
	}
	d.set(f, value, d.at(line))
}

func (d *document) list(f field, node *yaml.Node) (any, *problem) {
	switch f.value.Interface().(type) {
	case []string:
		return textList(node)
	case []Reserved:
		return reservedList(node)
	}
	return nil, &problem{"is a list, and one value is wanted", "write the value alone"}
}

func textList(node *yaml.Node) (any, *problem) {
	list := make([]string, 0, len(node.Content))
	for i, element := range node.Content {
		element = resolve(element)
		if element.Kind != yaml.ScalarNode || isNull(element) {
			return nil, &problem{fmt.Sprintf("element %d is not a text", i+1), "write one text a line"}
		}
		// Elements are parsed like any other text for the sake of its checks.
		text, wrong := parse(field{value: reflect.ValueOf("")}, element.Value)
		if wrong != nil {
			return nil, wrong
		}
		list = append(list, text.(string))
	}
	return list, nil
}

const reservedCure = "write {partition: NUMBER, symbols_file: FILE}"

func reservedList(node *yaml.Node) (any, *problem) {
	list := make([]Reserved, 0, len(node.Content))
	for i, element := range node.Content {
		entry, wrong := reservedEntry(resolve(element))
		if wrong != nil {
			return nil, &problem{fmt.Sprintf("entry %d: %s", i+1, wrong.what), wrong.cure}
		}
		list = append(list, entry)
	}
	return list, nil
}

func reservedEntry(node *yaml.Node) (Reserved, *problem) {
	var r Reserved
	if node.Kind != yaml.MappingNode {
		return r, &problem{"is not a mapping", reservedCure}
	}
	seen := map[string]bool{}
	v := reflect.ValueOf(&r).Elem()
	for i := 0; i+1 < len(node.Content); i += 2 {
		name, value := node.Content[i].Value, resolve(node.Content[i+1])
		f, ok := reservedField(v, name)
		switch {
		case !ok:
			return r, &problem{fmt.Sprintf("unknown key %q", name), reservedCure}
		case seen[name]:
			return r, &problem{name + " is written twice", reservedCure}
		case value.Kind != yaml.ScalarNode || isNull(value):
			return r, &problem{name + " has no value", reservedCure}
		}
		seen[name] = true
		parsed, wrong := parse(f, value.Value)
		if wrong != nil {
			return r, &problem{name + ": " + wrong.what, wrong.cure}
		}
		f.value.Set(reflect.ValueOf(parsed))
	}
	// Partition 0 is a partition: an entry that says none must not mean it.
	for _, name := range []string{"partition", "symbols_file"} {
		if !seen[name] {
			return r, &problem{name + " is missing", reservedCure}
		}
	}
	return r, nil
}

func reservedField(v reflect.Value, name string) (field, bool) {
	for _, f := range walk(v, "", 0) {
		if f.key == name {
			return f, true
		}
	}
	return field{}, false
}

func (d *document) fault(line int, key, what, cure string) {
	d.faults = append(d.faults, Fault{Key: key, Problem: what, Cure: cure, Source: d.at(line)})
}

func (d *document) at(line int) string { return fmt.Sprintf("%s:%d", d.name, line) }

// resolve follows an alias. What an alias may lie in is bounded by the depth
// of the schema, so one that contains itself ends as a fault, not in a loop.
func resolve(node *yaml.Node) *yaml.Node {
	if node.Kind == yaml.AliasNode {
		return node.Alias
	}
	return node
}

func isNull(node *yaml.Node) bool {
	return node.Kind == yaml.ScalarNode && node.ShortTag() == "!!null"
}
