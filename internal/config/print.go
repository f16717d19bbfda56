package config

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// DefaultFile returns the documented default file: every key, its default, one
// line of meaning. config.yaml in the repository is this text.
func DefaultFile() string {
	c := Default()
	var b strings.Builder
	b.WriteString(`# The configuration of joiner: every key with its default.
# A line that is left out means the same as the line here. What is commented out
# follows from other keys as long as nobody sets it.
#
# Flags win over the environment, the environment over this file. Each key has
# an environment variable: JOINER_ and its path in capitals, for example
# JOINER_KAFKA_BROKERS=a:9092,b:9092. Durations need a unit: 500ms, 10s, 2m.
`)
	writeYAML(&b, &c, true)
	return b.String()
}

// YAML returns the configuration as a file that Load reads back to the same
// values, but for secrets, which are redacted.
func (c Config) YAML() string {
	var b strings.Builder
	writeYAML(&b, &c, false)
	return b.String()
}

// JSON returns what YAML does as one JSON object. Durations are texts with
// their unit.
func (c Config) JSON() ([]byte, error) {
	root := map[string]any{}
	sections := map[string]map[string]any{"": root}
	for _, f := range fields(&c) {
		parent := sections[strings.TrimSuffix(strings.TrimSuffix(f.key, f.name()), ".")]
		if f.group {
			sections[f.key] = map[string]any{}
			parent[f.name()] = sections[f.key]
			continue
		}
		parent[f.name()] = jsonValue(f)
	}
	return json.MarshalIndent(root, "", "  ")
}

func jsonValue(f field) any {
	switch v := f.value.Interface().(type) {
	case time.Duration:
		return formatDuration(v)
	case []string:
		return append([]string{}, v...) // never null
	case []Reserved:
		list := make([]map[string]any, 0, len(v))
		for _, r := range v {
			list = append(list, map[string]any{"partition": r.Partition, "symbols_file": r.SymbolsFile})
		}
		return list
	default:
		return v
	}
}

func writeYAML(b *strings.Builder, c *Config, documented bool) {
	for _, f := range fields(c) {
		indent := strings.Repeat("  ", f.depth)
		if documented && f.depth == 0 {
			b.WriteString("\n")
		}
		if documented {
			fmt.Fprintf(b, "%s# %s\n", indent, f.doc)
		}
		if f.group {
			fmt.Fprintf(b, "%s%s:\n", indent, f.name())
			continue
		}
		if documented && f.derived {
			b.WriteString(indent + "# ")
			indent = ""
		}
		fmt.Fprintf(b, "%s%s: %s\n", indent, f.name(), inline(f))
	}
}

// inline writes a leaf's value in one line of YAML.
func inline(f field) string {
	switch v := f.value.Interface().(type) {
	case string:
		return scalar(v)
	case Secret:
		return scalar(v.String())
	case bool:
		return strconv.FormatBool(v)
	case time.Duration:
		return formatDuration(v)
	case []string:
		elements := make([]string, len(v))
		for i := range v {
			elements[i] = flowScalar(v[i])
		}
		return "[" + strings.Join(elements, ", ") + "]"
	case []Reserved:
		elements := make([]string, len(v))
		for i, r := range v {
			elements[i] = fmt.Sprintf("{partition: %d, symbols_file: %s}", r.Partition, flowScalar(r.SymbolsFile))
		}
		return "[" + strings.Join(elements, ", ") + "]"
	}
	return strconv.FormatInt(f.value.Int(), 10)
}

// scalar writes a text in one line, quoted where YAML needs it.
func scalar(text string) string {
	out, err := yaml.Marshal(text)
	line := strings.TrimSuffix(string(out), "\n")
	if err != nil || strings.Contains(line, "\n") || !readsBack(line, text) {
		return quoted(text)
	}
	return line
}

// flowScalar is scalar for a place between brackets, where a comma or a
// bracket in a plain text would end it.
func flowScalar(text string) string {
	if strings.ContainsAny(text, ",[]{}") {
		return quoted(text)
	}
	return scalar(text)
}

func readsBack(line, text string) bool {
	var node yaml.Node
	if err := yaml.Unmarshal([]byte("k: "+line), &node); err != nil || len(node.Content) != 1 {
		return false
	}
	mapping := node.Content[0]
	return len(mapping.Content) == 2 && mapping.Content[1].Value == text && mapping.Content[1].Kind == yaml.ScalarNode
}

// quoted writes a text in double quotes with JSON's escapes, all of which are
// YAML's too.
func quoted(text string) string {
	out, err := json.Marshal(text)
	if err != nil { // a string always marshals
		return strconv.Quote(text)
	}
	return string(out)
}
