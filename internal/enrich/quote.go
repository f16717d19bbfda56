package enrich

// appendQuoted appends s as a JSON string. It escapes what RFC 8259 wants
// escaped and nothing else: quote, backslash, control characters. Bytes that
// are not UTF-8 stay as they are; whoever must not have them looks first.
func appendQuoted(dst, s []byte) []byte {
	dst = append(dst, '"')
	for {
		n := skipPlain(s, 0)
		dst = append(dst, s[:n]...)
		if n == len(s) {
			return append(dst, '"')
		}
		dst = appendEscaped(dst, s[n])
		s = s[n+1:]
	}
}

func appendEscaped(dst []byte, c byte) []byte {
	const hex = "0123456789abcdef"
	switch c {
	case '"', '\\':
		return append(dst, '\\', c)
	case '\b':
		return append(dst, `\b`...)
	case '\f':
		return append(dst, `\f`...)
	case '\n':
		return append(dst, `\n`...)
	case '\r':
		return append(dst, `\r`...)
	case '\t':
		return append(dst, `\t`...)
	}
	return append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
}
