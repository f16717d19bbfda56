package config

import (
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// problem is a fault before it has a key and a source.
type problem struct{ what, cure string }

func (p *problem) at(key, source string) Fault {
	return Fault{Key: key, Problem: p.what, Cure: p.cure, Source: source}
}

// parse reads text, from whatever source, as a value of f's type.
func parse(f field, text string) (any, *problem) {
	if !utf8.ValidString(text) {
		return nil, &problem{"the value is not UTF-8", "write it in UTF-8"}
	}
	switch f.value.Interface().(type) {
	case string:
		return text, nil
	case Secret:
		return parseSecret(text)
	case bool:
		return parseBool(text)
	case time.Duration:
		return parseDuration(text)
	case []string:
		return splitList(text), nil
	case []Reserved:
		return parseReservedList(text)
	}
	return parseInt(text, f.value.Type())
}

// parseSecret refuses the text that stands for a secret in what `joiner
// config` prints: with it a configuration fed back would replace the secret.
func parseSecret(text string) (any, *problem) {
	if text == Redacted {
		return nil, &problem{"is the placeholder that `joiner config` prints, not the secret", "give the secret, or name a file that holds it"}
	}
	return Secret(text), nil
}

func parseBool(text string) (any, *problem) {
	b, err := strconv.ParseBool(text)
	if err != nil {
		return nil, &problem{fmt.Sprintf("%q is neither true nor false", text), "write true or false"}
	}
	return b, nil
}

// parseInt reads a whole number of t's size, so that a number too large for
// the field is a fault rather than another number.
func parseInt(text string, t reflect.Type) (any, *problem) {
	n, err := strconv.ParseInt(text, 10, t.Bits())
	if errors.Is(err, strconv.ErrRange) {
		return nil, &problem{text + " is out of range", fmt.Sprintf("write %d at most", int64(1)<<(t.Bits()-1)-1)}
	}
	if err != nil {
		return nil, &problem{fmt.Sprintf("%q is not a whole number", text), "write digits only"}
	}
	return reflect.ValueOf(n).Convert(t).Interface(), nil
}

// parseDuration reads a duration with its unit. A bare number is refused,
// zero too: what it would mean depends on the reader, and a configuration in
// which some bare numbers pass teaches people to write them.
func parseDuration(text string) (any, *problem) {
	if isNumber(text) {
		return nil, &problem{fmt.Sprintf("%q has no unit", text), fmt.Sprintf("write %ss or %sms, whichever is meant", text, text)}
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return nil, &problem{fmt.Sprintf("%q is not a duration", text), "write a number with its unit (ms, s, m, h), such as 500ms, 10s or 1h30m"}
	}
	return d, nil
}

func isNumber(text string) bool {
	_, err := strconv.ParseFloat(text, 64)
	return err == nil && strings.Trim(text, "+-.0123456789") == ""
}

// formatDuration writes d in the largest unit that divides it, as people write
// durations in files: 500ms, 60s, 2m. parseDuration reads it back exactly.
func formatDuration(d time.Duration) string {
	units := []struct {
		of   time.Duration
		from time.Duration // smaller ones are written in a smaller unit
		name string
	}{
		{time.Hour, time.Hour, "h"},
		{time.Minute, 2 * time.Minute, "m"},
		{time.Second, 0, "s"},
		{time.Millisecond, 0, "ms"},
		{time.Microsecond, 0, "us"},
	}
	for _, u := range units {
		if d%u.of == 0 && (d >= u.from || d <= -u.from) {
			return strconv.FormatInt(int64(d/u.of), 10) + u.name
		}
	}
	return strconv.FormatInt(int64(d), 10) + "ns"
}

// splitList splits a list written in one text. Space around elements is not
// theirs; no text is no element.
func splitList(text string) []string {
	list := []string{}
	if strings.TrimSpace(text) == "" {
		return list
	}
	for element := range strings.SplitSeq(text, ",") {
		list = append(list, strings.TrimSpace(element))
	}
	return list
}

// parseReservedList reads PARTITION=FILE, separated by commas: the form of
// topics.reserved where only one text is at hand.
func parseReservedList(text string) (any, *problem) {
	list := []Reserved{}
	for _, element := range splitList(text) {
		number, file, ok := strings.Cut(element, "=")
		if !ok {
			return nil, &problem{fmt.Sprintf("%q is not PARTITION=FILE", element), "write for example 0=/etc/joiner/first-tier,1=/etc/joiner/second-tier"}
		}
		partition, wrong := parseInt(strings.TrimSpace(number), reflect.TypeFor[int32]())
		if wrong != nil {
			return nil, wrong
		}
		list = append(list, Reserved{Partition: partition.(int32), SymbolsFile: strings.TrimSpace(file)})
	}
	return list, nil
}
