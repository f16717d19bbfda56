package audit

import (
	"bytes"
	"math/big"
	"strconv"
)

// canonical appends to dst a form of the JSON number that is the same for all
// numbers of the same value and differs where the values do, whatever their
// length and exponent: sign, digits without zeros around them, and the exponent
// of the last digit. text must be a JSON number.
func canonical(dst, text []byte) []byte {
	mantissa, exponent := text, []byte(nil)
	if e := bytes.IndexAny(text, "eE"); e >= 0 {
		mantissa, exponent = text[:e], bytes.TrimPrefix(text[e+1:], []byte("+"))
	}
	negative := bytes.HasPrefix(mantissa, []byte("-"))
	if negative {
		mantissa = mantissa[1:]
	}
	whole, fraction, _ := bytes.Cut(mantissa, []byte("."))
	begin := len(dst)
	if negative {
		dst = append(dst, '-')
	}
	at := len(dst)
	dst = append(append(dst, whole...), fraction...)
	digits := bytes.TrimLeft(dst[at:], "0")
	significant := bytes.TrimRight(digits, "0")
	if len(significant) == 0 {
		return append(dst[:begin], '0') // of either sign
	}
	shift := int64(len(digits) - len(significant) - len(fraction))
	n := copy(dst[at:], significant)
	dst = append(dst[:at+n], 'e')
	return appendSum(dst, exponent, shift)
}

// appendSum appends exponent, which is text of any length or none, plus shift.
func appendSum(dst, exponent []byte, shift int64) []byte {
	if len(exponent) == 0 {
		return strconv.AppendInt(dst, shift, 10)
	}
	const fits = 18 // digits and sign that an int64 holds with room for shift
	if len(exponent) <= fits {
		e, err := strconv.ParseInt(string(exponent), 10, 64)
		if err == nil {
			return strconv.AppendInt(dst, e+shift, 10)
		}
	}
	e, ok := new(big.Int).SetString(string(exponent), 10)
	if !ok {
		return append(append(dst, '?'), exponent...) // no JSON number; equal to its like alone
	}
	return e.Add(e, big.NewInt(shift)).Append(dst, 10)
}
