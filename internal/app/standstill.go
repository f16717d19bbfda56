package app

import (
	"strings"
	"unicode/utf8"
)

// longestNote bounds what one note says of a standstill, in bytes: what broker or
// system say of a fault may be long.
const longestNote = 300

// standstills says what stands still for want of brokers or of other pods, since
// when and why. It makes no pod unready: another would have the same brokers and
// pods.
func (a *App) standstills() []string {
	notes := append(a.access.Unreachable(), a.delivery.Notes()...)
	if away := a.clients.CoordinatorAway(); away != "" {
		notes = append(notes, away)
	}
	if peers := a.remote.Load(); peers != nil {
		notes = append(notes, peers.Notes()...)
	}
	for i, note := range notes {
		notes[i] = bounded(note, longestNote)
	}
	return notes
}

// bounded cuts a text that is too long, between characters.
func bounded(text string, most int) string {
	if len(text) <= most {
		return text
	}
	for most > 0 && !utf8.RuneStart(text[most]) {
		most--
	}
	return strings.TrimSpace(text[:most]) + "…"
}
