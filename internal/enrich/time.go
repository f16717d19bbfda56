package enrich

import (
	"fmt"

	"joiner/internal/record"
)

// The event times that RFC 3339 can write: from 0000-01-01T00:00:00.000Z to
// 9999-12-31T23:59:59.999Z. Keeping to them means that every alert can be
// written, and that no difference of two event times overflows.
const (
	minEventTime record.Millis = -62_167_219_200_000
	maxEventTime record.Millis = 253_402_300_799_999
)

const (
	msPerSecond = 1_000
	msPerMinute = 60 * msPerSecond
	msPerHour   = 60 * msPerMinute
	msPerDay    = 24 * msPerHour
)

// unit is how an event time in a value is written.
type unit uint8

const (
	unitAuto unit = iota // text that is no number is RFC 3339, numbers go by magnitude
	unitSeconds
	unitMillis
	unitMicros
	unitNanos
	unitRFC3339
)

// parseUnit reads a configured unit; "" is auto.
func parseUnit(s string) (unit, error) {
	switch s {
	case "", "auto":
		return unitAuto, nil
	case "s":
		return unitSeconds, nil
	case "ms":
		return unitMillis, nil
	case "us":
		return unitMicros, nil
	case "ns":
		return unitNanos, nil
	case "rfc3339":
		return unitRFC3339, nil
	}
	return 0, fmt.Errorf("unknown unit %q: use auto, s, ms, us, ns or rfc3339", s)
}

// parseEventTime reads the text of an event time; quoted says that it stood in
// quotes. Anything finer than a millisecond is cut off towards the past,
// before 1970 too, without going through a float. ok is false for text that
// the unit cannot mean and for times outside the years 0000 to 9999.
func parseEventTime(text []byte, quoted bool, u unit) (ms record.Millis, ok bool) {
	number := !quoted || isNumber(text)
	if u == unitRFC3339 && !quoted {
		return 0, false
	}
	if u == unitRFC3339 || u == unitAuto && !number {
		ms, ok = parseRFC3339(text)
	} else if number {
		ms, ok = parseNumericTime(text, u)
	}
	if !ok || ms < minEventTime || ms > maxEventTime {
		return 0, false
	}
	return ms, true
}

// parseNumericTime reads a JSON number as a time in u, of which auto chooses
// by magnitude: below 1e11 s, below 1e14 ms, below 1e17 us, else ns.
//
// The number is looked at as 0.d₁d₂d₃… × 10^point with d₁ ≠ 0: below 1e11 then
// is a point of at most 11, and another unit moves the point.
func parseNumericTime(text []byte, u unit) (record.Millis, bool) {
	d := splitDecimal(text)
	if d.zero {
		return 0, true
	}
	point := d.point + millisShift(u, d.point)
	const most = 15 // digits in maxEventTime
	if point > most {
		return 0, false
	}
	var ms record.Millis
	taken, rest := int64(0), false
	for _, c := range d.digits {
		if c == '.' {
			continue
		}
		if taken < point {
			ms = ms*10 + record.Millis(c-'0')
			taken++
		} else if c != '0' {
			rest = true
			break
		}
	}
	for ; taken < point; taken++ {
		ms *= 10
	}
	if !d.negative {
		return ms, true
	}
	if rest {
		ms++
	}
	return -ms, true
}

// millisShift returns how many places the decimal point moves to the right to
// make milliseconds out of u.
func millisShift(u unit, point int64) int64 {
	switch {
	case u == unitSeconds, u == unitAuto && point <= 11:
		return 3
	case u == unitMillis, u == unitAuto && point <= 14:
		return 0
	case u == unitMicros, u == unitAuto && point <= 17:
		return -3
	}
	return -6
}

// decimal is a JSON number taken apart: its value is ±0.digits × 10^point.
type decimal struct {
	negative, zero bool
	digits         []byte // from the first that is not 0, perhaps with a '.' among them
	point          int64
}

// splitDecimal takes a checked JSON number apart.
func splitDecimal(text []byte) decimal {
	var d decimal
	if text[0] == '-' {
		d.negative = true
		text = text[1:]
	}
	var exponent int64
	first, dot := -1, -1
	end := len(text)
	for i, c := range text {
		switch {
		case c == '.':
			dot = i
		case c|0x20 == 'e':
			exponent = parseExponent(text[i+1:])
			end = i
		case first < 0 && c != '0':
			first = i
		}
		if end == i {
			break
		}
	}
	if first < 0 {
		d.zero = true
		return d
	}
	if dot < 0 {
		dot = end
	}
	d.digits = text[first:end]
	d.point = int64(dot-first) + exponent
	if first > dot {
		d.point++ // the dot itself is no digit
	}
	return d
}

// parseExponent reads a checked exponent. It stops short of overflowing: no
// value is long enough for its digits to make up for such an exponent.
func parseExponent(text []byte) int64 {
	negative := text[0] == '-'
	if negative || text[0] == '+' {
		text = text[1:]
	}
	var n int64
	for _, c := range text {
		if n = n*10 + int64(c-'0'); n > 1<<50 {
			break
		}
	}
	if negative {
		return -n
	}
	return n
}

// parseRFC3339 reads a date-time of RFC 3339, section 5.6: T and Z in either
// case, a space in place of the T (as its note allows), any number of
// fraction digits, of which three count, and a 60th second where the last
// minute of a UTC day can have one, which is then the first of the next day.
func parseRFC3339(t []byte) (record.Millis, bool) {
	if len(t) < len("2006-01-02T15:04:05Z") {
		return 0, false
	}
	if t[4] != '-' || t[7] != '-' || t[13] != ':' || t[16] != ':' {
		return 0, false
	}
	if c := t[10]; c|0x20 != 't' && c != ' ' {
		return 0, false
	}
	year := fixed(t[0:4])
	month, day := fixed(t[5:7]), fixed(t[8:10])
	hour, minute, second := fixed(t[11:13]), fixed(t[14:16]), fixed(t[17:19])
	if year < 0 || month < 1 || month > 12 || day < 1 || day > daysIn(year, month) {
		return 0, false
	}
	if hour < 0 || hour > 23 || minute < 0 || minute > 59 || second < 0 || second > 60 {
		return 0, false
	}
	fraction, t, ok := parseFraction(t[19:])
	if !ok {
		return 0, false
	}
	offset, ok := parseOffset(t)
	if !ok {
		return 0, false
	}
	ms := daysFromCivil(year, month, day)*msPerDay +
		hour*msPerHour + minute*msPerMinute + second*msPerSecond + fraction - offset
	if second == 60 && floorMod(ms, msPerDay) >= msPerSecond {
		return 0, false
	}
	return record.Millis(ms), true
}

// parseFraction reads the fraction of a second, if there is one, in
// milliseconds, and returns what follows it.
func parseFraction(t []byte) (ms int64, rest []byte, ok bool) {
	if len(t) == 0 || t[0] != '.' {
		return 0, t, true
	}
	n := skipDigits(t, 1)
	if n == 1 {
		return 0, nil, false
	}
	for i, weight := 1, int64(100); i < n && weight > 0; i, weight = i+1, weight/10 {
		ms += int64(t[i]-'0') * weight
	}
	return ms, t[n:], true
}

// parseOffset reads Z or a numeric offset, in milliseconds east of UTC.
func parseOffset(t []byte) (ms int64, ok bool) {
	if len(t) == 1 && t[0]|0x20 == 'z' {
		return 0, true
	}
	if len(t) != len("+07:00") || t[0] != '+' && t[0] != '-' || t[3] != ':' {
		return 0, false
	}
	hour, minute := fixed(t[1:3]), fixed(t[4:6])
	if hour < 0 || hour > 23 || minute < 0 || minute > 59 {
		return 0, false
	}
	ms = hour*msPerHour + minute*msPerMinute
	if t[0] == '-' {
		ms = -ms
	}
	return ms, true
}

// fixed reads digits only; −1 where there is anything else.
func fixed(t []byte) int64 {
	var n int64
	for _, c := range t {
		if !isDigit(c) {
			return -1
		}
		n = n*10 + int64(c-'0')
	}
	return n
}

func daysIn(year, month int64) int64 {
	switch month {
	case 2:
		if year%4 == 0 && (year%100 != 0 || year%400 == 0) {
			return 29
		}
		return 28
	case 4, 6, 9, 11:
		return 30
	}
	return 31
}

// daysPerEra is 400 years of the Gregorian calendar, after which it repeats.
const daysPerEra = 146_097

// epochDay is 1970-01-01 counted from 0000-03-01: years that begin in March
// have their leap day last, which makes both conversions plain arithmetic.
const epochDay = 719_468

// daysFromCivil returns the days from 1970-01-01 to a date of the proleptic
// Gregorian calendar.
func daysFromCivil(year, month, day int64) int64 {
	if month <= 2 {
		year--
	}
	era := floorDiv(year, 400)
	yearOfEra := year - era*400
	dayOfYear := (153*((month+9)%12)+2)/5 + day - 1
	dayOfEra := yearOfEra*365 + yearOfEra/4 - yearOfEra/100 + dayOfYear
	return era*daysPerEra + dayOfEra - epochDay
}

// civilFromDays is the inverse of daysFromCivil.
func civilFromDays(days int64) (year, month, day int64) {
	days += epochDay
	era := floorDiv(days, daysPerEra)
	dayOfEra := days - era*daysPerEra
	yearOfEra := (dayOfEra - dayOfEra/1460 + dayOfEra/36524 - dayOfEra/146096) / 365
	dayOfYear := dayOfEra - (365*yearOfEra + yearOfEra/4 - yearOfEra/100)
	shifted := (5*dayOfYear + 2) / 153
	day = dayOfYear - (153*shifted+2)/5 + 1
	month = (shifted+2)%12 + 1
	year = yearOfEra + era*400
	if month <= 2 {
		year++
	}
	return year, month, day
}

func floorDiv(a, b int64) int64 { return (a - floorMod(a, b)) / b }

func floorMod(a, b int64) int64 { return (a%b + b) % b }

// AppendTime appends t as RFC 3339 has it, in UTC and with exactly three
// fraction digits. Event times outside the years 0000 to 9999 never come out
// of a decoder; RFC 3339 has no way to write them, and they are written with
// as many digits and the sign that the year needs.
func AppendTime(dst []byte, t record.Millis) []byte {
	if t < minEventTime || t > maxEventTime {
		return t.Time().AppendFormat(dst, "2006-01-02T15:04:05.000Z")
	}
	ms := floorMod(int64(t), msPerDay)
	year, month, day := civilFromDays((int64(t) - ms) / msPerDay)
	dst = appendFixed(dst, year, 1000)
	dst = appendFixed(append(dst, '-'), month, 10)
	dst = appendFixed(append(dst, '-'), day, 10)
	dst = appendFixed(append(dst, 'T'), ms/msPerHour, 10)
	dst = appendFixed(append(dst, ':'), ms/msPerMinute%60, 10)
	dst = appendFixed(append(dst, ':'), ms/msPerSecond%60, 10)
	dst = appendFixed(append(dst, '.'), ms%msPerSecond, 100)
	return append(dst, 'Z')
}

// appendFixed appends n with as many digits as top, a power of ten, has.
func appendFixed(dst []byte, n, top int64) []byte {
	for ; top > 0; top /= 10 {
		dst = append(dst, byte('0'+n/top%10))
	}
	return dst
}
