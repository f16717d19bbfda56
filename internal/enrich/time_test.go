package enrich

import (
	"math/big"
	"regexp"
	"strings"
	"testing"
	"time"

	"joiner/internal/record"

	"pgregory.net/rapid"
)

func TestParseEventTime(t *testing.T) {
	const bad record.Millis = -1 << 62
	for _, c := range []struct {
		text string
		unit unit
		want record.Millis
	}{
		{`1700000000`, unitAuto, 1_700_000_000_000},
		{`1700000000.123`, unitAuto, 1_700_000_000_123},
		{`1700000000.1239999999999999999999`, unitAuto, 1_700_000_000_123},
		{`99999999999`, unitAuto, 99_999_999_999_000},
		{`99999999999.999999`, unitAuto, 99_999_999_999_999},
		{`100000000000`, unitAuto, 100_000_000_000},
		{`99999999999999`, unitAuto, 99_999_999_999_999},
		{`99999999999999.9`, unitAuto, 99_999_999_999_999},
		{`100000000000000`, unitAuto, 100_000_000_000},
		{`99999999999999999`, unitAuto, 99_999_999_999_999},
		{`100000000000000000`, unitAuto, 100_000_000_000},
		{`1700000000123456789`, unitAuto, 1_700_000_000_123},
		{`1.7e9`, unitAuto, 1_700_000_000_000},
		{`1.7E+12`, unitAuto, 1_700_000_000_000},
		{`17000000000e-1`, unitAuto, 1_700_000_000_000},
		{`0`, unitAuto, 0},
		{`-0`, unitAuto, 0},
		{`-0.0e99999999999999999999`, unitAuto, 0},
		{`0e99999999999999999999`, unitSeconds, 0},
		{`-1`, unitAuto, -1_000},
		{`-0.0001`, unitAuto, -1},
		{`-1.5`, unitMillis, -2},
		{`-1.0`, unitMillis, -1},
		{`-1e-999999999999999999999`, unitMillis, -1},
		{`1e-999999999999999999999`, unitMillis, 0},
		{`-100000000000`, unitAuto, -100_000_000_000},
		{`0.0009`, unitSeconds, 0},
		{`0.001`, unitSeconds, 1},
		{`0.999`, unitMillis, 0},
		{`1999`, unitMicros, 1},
		{`-1999`, unitMicros, -2},
		{`-1000`, unitMicros, -1},
		{`1999999`, unitNanos, 1},
		{`-1`, unitNanos, -1},
		{`1700000000000`, unitMillis, 1_700_000_000_000},
		{`253402300799.999`, unitSeconds, maxEventTime},
		{`253402300799.9999`, unitSeconds, maxEventTime},
		{`253402300800`, unitSeconds, bad},
		{`-62167219200`, unitSeconds, minEventTime},
		{`-62167219200.0001`, unitSeconds, bad},
		{`9223372036854775807`, unitMillis, bad},
		{`18446744073709551616`, unitMillis, bad},
		{`1e99999999999999999999`, unitNanos, bad},
		{`1e999999999`, unitAuto, bad},
		{`1700000000`, unitRFC3339, bad},
		{`"1700000000.123"`, unitAuto, 1_700_000_000_123},
		{`"1700000000123"`, unitMillis, 1_700_000_000_123},
		{`" 1700000000"`, unitAuto, bad},
		{`"+1700000000"`, unitSeconds, bad},
		{`"01700000000"`, unitSeconds, bad},
		{`"1700000000"`, unitRFC3339, bad},
		{`"2026-01-05T03:00:00.123Z"`, unitMillis, bad},
		{`"2026-01-05T03:00:00.123Z"`, unitAuto, 1_767_582_000_123},
		{`"2026-01-05T03:00:00.1239999Z"`, unitRFC3339, 1_767_582_000_123},
		{`"2026-01-05t10:00:00.1+07:00"`, unitRFC3339, 1_767_582_000_100},
		{`"2026-01-05 03:00:00-00:00"`, unitRFC3339, 1_767_582_000_000},
		{`"2026-01-04T21:30:00-05:30"`, unitRFC3339, 1_767_582_000_000},
		{`"1969-12-31T23:59:59.9999z"`, unitRFC3339, -1},
		{`"0000-01-01T00:00:00Z"`, unitRFC3339, minEventTime},
		{`"0000-01-01T00:00:00+00:01"`, unitRFC3339, bad},
		{`"9999-12-31T23:59:59.999Z"`, unitRFC3339, maxEventTime},
		{`"9999-12-31T23:59:59.999-00:01"`, unitRFC3339, bad},
		{`"2016-12-31T23:59:60.5Z"`, unitRFC3339, 1_483_228_800_500},
		{`"2017-01-01T00:59:60+01:00"`, unitRFC3339, 1_483_228_800_000},
		{`"2016-12-31T22:59:60Z"`, unitRFC3339, bad},
		{`"2024-02-29T00:00:00Z"`, unitRFC3339, 1_709_164_800_000},
		{`"2023-02-29T00:00:00Z"`, unitRFC3339, bad},
		{`"1900-02-29T00:00:00Z"`, unitRFC3339, bad},
		{`"2026-04-31T00:00:00Z"`, unitRFC3339, bad},
		{`"2026-13-01T00:00:00Z"`, unitRFC3339, bad},
		{`"2026-00-01T00:00:00Z"`, unitRFC3339, bad},
		{`"2026-01-00T00:00:00Z"`, unitRFC3339, bad},
		{`"2026-01-05T24:00:00Z"`, unitRFC3339, bad},
		{`"2026-01-05T03:60:00Z"`, unitRFC3339, bad},
		{`"2026-01-05T03:00:61Z"`, unitRFC3339, bad},
		{`"2026-01-05T03:00:00"`, unitRFC3339, bad},
		{`"2026-01-05T03:00:00.Z"`, unitRFC3339, bad},
		{`"2026-01-05T03:00:00+24:00"`, unitRFC3339, bad},
		{`"2026-01-05T03:00:00+01:60"`, unitRFC3339, bad},
		{`"2026-01-05T03:00:00+0100"`, unitRFC3339, bad},
		{`"2026-01-05T03:00:00Z "`, unitRFC3339, bad},
		{`"2026-1-05T03:00:00Z000"`, unitRFC3339, bad},
		{`"2026-01-05T03:00:0xZ"`, unitRFC3339, bad},
		{`"2026-01-05T-3:00:00Z"`, unitRFC3339, bad},
		{`"yesterday"`, unitAuto, bad},
		{`""`, unitAuto, bad},
		{`""`, unitSeconds, bad},
	} {
		txt, quoted, ok := text([]byte(c.text))
		if !ok {
			t.Fatalf("%s is no text", c.text)
		}
		got, ok := parseEventTime(txt, quoted, c.unit)
		if !ok {
			got = bad
		}
		if got != c.want {
			t.Errorf("%s in unit %d: %d, want %d", c.text, c.unit, got, c.want)
		}
	}
}

func TestParseUnit(t *testing.T) {
	for s, want := range map[string]unit{
		"": unitAuto, "auto": unitAuto, "s": unitSeconds, "ms": unitMillis, "us": unitMicros, "ns": unitNanos, "rfc3339": unitRFC3339,
	} {
		if got, err := parseUnit(s); err != nil || got != want {
			t.Errorf("%q: %d, %v", s, got, err)
		}
	}
	for _, s := range []string{"S", "sec", "RFC3339", "µs", " s"} {
		if _, err := parseUnit(s); err == nil {
			t.Errorf("%q is taken for a unit", s)
		}
	}
}

// numericTimeByTheBook does what parseNumericTime does, in exact fractions.
// Exponents must be small.
func numericTimeByTheBook(text string, u unit) (record.Millis, bool) {
	v, ok := new(big.Rat).SetString(text)
	if !ok {
		return 0, false
	}
	size := new(big.Rat).Abs(v)
	below := func(limit int64) bool { return size.Cmp(new(big.Rat).SetInt64(limit)) < 0 }
	switch {
	case u == unitSeconds, u == unitAuto && below(1e11):
		v.Mul(v, big.NewRat(1000, 1))
	case u == unitMillis, u == unitAuto && below(1e14):
	case u == unitMicros, u == unitAuto && below(1e17):
		v.Mul(v, big.NewRat(1, 1000))
	default:
		v.Mul(v, big.NewRat(1, 1_000_000))
	}
	floor := new(big.Int).Div(v.Num(), v.Denom()) // Euclidean: floors for a positive divisor
	if !floor.IsInt64() {
		return 0, false
	}
	ms := record.Millis(floor.Int64())
	return ms, ms >= minEventTime && ms <= maxEventTime
}

func TestNumericTimeIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.StringMatching(`-?(0|[1-9][0-9]{0,20})(\.[0-9]{1,12})?([eE][+-]?[0-9]{1,2})?`).Draw(t, "number")
		u := unit(rapid.IntRange(int(unitAuto), int(unitNanos)).Draw(t, "unit"))
		checkNumericTime(t, s, u)
	})
}

func checkNumericTime(t interface{ Fatalf(string, ...any) }, s string, u unit) {
	want, wantOK := numericTimeByTheBook(s, u)
	got, ok := parseEventTime([]byte(s), false, u)
	if ok != wantOK || ok && got != want {
		t.Fatalf("%s in unit %d: %d, %v; want %d, %v", s, u, got, ok, want, wantOK)
	}
}

func TestTimeRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ms := record.Millis(rapid.Int64Range(int64(minEventTime), int64(maxEventTime)).Draw(t, "ms"))
		text := AppendTime(nil, ms)
		if want := ms.Time().Format("2006-01-02T15:04:05.000Z"); string(text) != want {
			t.Fatalf("%d is written %s, want %s", ms, text, want)
		}
		if got, ok := parseRFC3339(text); !ok || got != ms {
			t.Fatalf("%s is read as %d, %v; want %d", text, got, ok, ms)
		}
	})
}

func TestEveryDayOfFourCenturies(t *testing.T) {
	at := time.Date(1899, 1, 1, 0, 0, 0, 0, time.UTC)
	for at.Year() < 2300 {
		y, m, d := civilFromDays(floorDiv(at.Unix(), 86_400))
		if y != int64(at.Year()) || m != int64(at.Month()) || d != int64(at.Day()) {
			t.Fatalf("%s is %d-%d-%d", at, y, m, d)
		}
		if days := daysFromCivil(y, m, d); days*86_400 != at.Unix() {
			t.Fatalf("%s is day %d", at, days)
		}
		at = at.AddDate(0, 0, 1)
	}
}

func TestAppendTimeOutsideRFC3339(t *testing.T) {
	if got := string(AppendTime(nil, maxEventTime+1)); got != "10000-01-01T00:00:00.000Z" {
		t.Errorf("one past the last: %s", got)
	}
	if got := string(AppendTime(nil, minEventTime-1)); got != "-0001-12-31T23:59:59.999Z" {
		t.Errorf("one before the first: %s", got)
	}
}

var commonRFC3339 = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)$`)

func FuzzEventTime(f *testing.F) {
	for _, s := range []string{
		"1700000000.123", "-1e-3", "99999999999.9", "2026-01-05T03:00:00.123Z", "2016-12-31T23:59:60+00:00",
		"0000-01-01T00:00:00+23:59", "2026-01-05T03:00:00,5Z", "", "1e99999999999999999999",
	} {
		f.Add(s, uint8(unitAuto))
		f.Add(s, uint8(unitRFC3339))
	}
	f.Fuzz(func(t *testing.T, s string, n uint8) {
		u := unit(n % uint8(unitRFC3339+1))
		ms, ok := parseEventTime([]byte(s), true, u)
		if ok && (ms < minEventTime || ms > maxEventTime) {
			t.Fatalf("%q is %d, out of range", s, ms)
		}
		if e := strings.IndexAny(s, "eE"); isNumber([]byte(s)) && u != unitRFC3339 && (e < 0 || len(s)-e < 5) {
			checkNumericTime(t, s, u)
		}
		// Package time takes more than RFC 3339 (hours of one digit, a comma) and
		// less (small letters, a space, leap seconds); on what both have they
		// must agree.
		if u == unitRFC3339 && commonRFC3339.MatchString(s) && s[17:19] != "60" {
			want, err := time.Parse(time.RFC3339, s)
			wantMS := record.MillisOf(want)
			wantOK := err == nil && wantMS >= minEventTime && wantMS <= maxEventTime
			if ok != wantOK || ok && ms != wantMS {
				t.Fatalf("%q is %d, %v; package time says %d, %v", s, ms, ok, wantMS, err)
			}
		}
	})
}
