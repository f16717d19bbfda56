package app

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/IBM/sarama"

	"joiner/internal/member"
	"joiner/internal/record"
	"joiner/internal/server"
	"joiner/internal/status"
	"joiner/internal/task"
)

// Ready implements server.Status.
func (a *App) Ready() server.Readiness {
	if !a.connected.Load() {
		return server.Readiness{Reasons: oneLine(append([]string{"no broker of kafka.brokers has answered yet"}, a.access.Refusals()...))}
	}
	s := a.member.Status()
	r := server.Readiness{Assigned: s.Assigned, CaughtUp: s.Assigned && len(s.Starting) == 0, Reasons: []string{}}
	r.Reasons = append(r.Reasons, a.Stalled()...)
	if a.stopping.Load() {
		r.Reasons = append(r.Reasons, "stopping")
	}
	r.Reasons = append(r.Reasons, a.access.Refusals()...)
	r.Reasons = append(r.Reasons, a.rightsReasons()...)
	r.Reasons = append(r.Reasons, a.groupReasons(s)...)
	for _, t := range s.Tasks {
		a.judge(t, &r)
	}
	if len(s.Starting) > 0 && s.Assigned {
		r.Reasons = append(r.Reasons, "claims not started: partitions "+list(s.Starting))
	}
	r.Reasons = append(r.Reasons, a.outputs.reasons()...)
	if waits := a.delivery.Waits(); waits != "" {
		r.Reasons = append(r.Reasons, waits)
	}
	r.Notes = append(a.keys.Notes(), directoryNotes(s)...)
	r.Notes = append(r.Notes, vacantNotes(s)...)
	r.Notes = append(r.Notes, a.foreignNotes(s)...)
	r.Notes = append(r.Notes, a.standstills()...)
	r.Notes = append(r.Notes, a.fileNotes()...)
	if a.checkpoints != nil {
		r.Notes = append(r.Notes, a.checkpoints.Notes()...)
	}
	r.Reasons, r.Notes = once(oneLine(r.Reasons)), oneLine(r.Notes)
	r.Ready = r.Assigned && len(r.Reasons) == 0
	return r
}

// once drops what has been said: a right may be missed by several.
func once(texts []string) []string {
	said := make(map[string]bool, len(texts))
	return slices.DeleteFunc(texts, func(text string) bool {
		again := said[text]
		said[text] = true
		return again
	})
}

// fileNotes says which files of certificates are not in use as they are now, and why.
// The pod goes on with what it had, which its next start will not have.
func (a *App) fileNotes() []string {
	notes := append(a.access.TLSFaults(), a.peering.faults()...)
	for i, note := range notes {
		notes[i] = bounded(note, 2*longestNote) // two paths may be in it
	}
	return notes
}

// oneLine joins the lines of each text: errors that were joined have several.
func oneLine(texts []string) []string {
	for i, text := range texts {
		texts[i] = strings.ReplaceAll(text, "\n", "; ")
	}
	return texts
}

// judge adds what one task has to say. A task that has not reached the market
// end that it saw at its assignment is not ready, whether it began with a
// commit or not: one that moves in the middle of a group's first catch-up
// begins with one, and is as far from the present as it was.
func (a *App) judge(t task.Status, r *server.Readiness) {
	switch {
	case t.State < task.Running:
		r.Restoring = true
		r.CaughtUp = false
		r.Reasons = append(r.Reasons, fmt.Sprintf("partition %d of %s is being restored: %d records left",
			t.Index, a.topics[record.Market], t.RestoreRemaining))
	case t.State > task.Running:
		r.CaughtUp = false
		r.Reasons = append(r.Reasons, fmt.Sprintf("partition %d is being handed over", t.Index))
	case !t.CaughtUp:
		r.Restoring = r.Restoring || t.FirstCatchUp
		r.CaughtUp = false
		r.Reasons = append(r.Reasons, fmt.Sprintf("partition %d of %s is not caught up: %d records left",
			t.Index, a.topics[record.Market], t.RestoreRemaining))
	}
}

// rightsReasons says which rights brokers miss.
func (a *App) rightsReasons() (reasons []string) {
	for _, right := range a.clients.MissingRights() {
		reasons = append(reasons, "missing right: "+right.String())
	}
	return reasons
}

// groupReasons says what the group lacks.
func (a *App) groupReasons(s member.Status) []string {
	if !s.Assigned {
		switch {
		case errors.Is(s.LastError, sarama.ErrInconsistentGroupProtocol):
			return []string{"the members of the group use another strategy: set group.strategy to theirs, or name theirs in group.upgrade_from while the group changes over"}
		case errors.Is(s.LastError, sarama.ErrFencedInstancedId):
			return []string{fmt.Sprintf("another process has group.instance_id %s, and with it this pod's tasks: give each pod one of its own", a.o.Config.Group.InstanceID)}
		case errors.Is(s.LastError, sarama.ErrGroupAuthorizationFailed):
			return []string{"missing right: Read on group " + a.o.Config.Group.ID}
		case s.LastError != nil:
			return []string{"the group gave no assignment: " + s.LastError.Error()}
		}
		return []string{"the group has given no assignment yet"}
	}
	var reasons []string
	if len(s.Coming) > 0 {
		reasons = append(reasons, "partitions "+list(s.Coming)+" are being handed over to this pod, which has none yet")
	}
	d := s.Directory
	if d == nil {
		return reasons // a foreign member leads, as it may during a rolling change
	}
	if d.Problem != "" {
		reasons = append(reasons, d.Problem+": grow the smaller one")
	}
	return append(reasons, unowned(d.Unowned)...)
}

// vacantNotes says which partitions nobody lets go.
func vacantNotes(s member.Status) []string {
	if len(s.Vacant) == 0 {
		return nil
	}
	return []string{fmt.Sprintf("partitions %s have had no owner since %s: their old one has not let them go, and another rebalance is asked for",
		list(s.Vacant), s.VacantSince.UTC().Format(time.RFC3339))}
}

// directoryNotes says why nobody can be asked for prices of other pods.
func directoryNotes(s member.Status) []string {
	switch {
	case !s.Assigned:
		return nil
	case s.Directory == nil:
		return []string{"the group is led by a member that is no joiner of this version: prices of other pods are unavailable until it has left"}
	case s.Directory.Truncated:
		return []string{"the group has too many members for each to be told who owns what: prices of other pods are unavailable"}
	}
	return nil
}

// foreignNotes says what members that are no joiners take from the group.
func (a *App) foreignNotes(s member.Status) []string {
	if !s.Assigned {
		return nil
	}
	return status.ForeignOwners(s.Directory, a.topics)
}

func unowned(partitions map[string][]int32) (reasons []string) {
	for topic, list32 := range partitions {
		if len(list32) > 0 {
			reasons = append(reasons, fmt.Sprintf("nobody can own partitions %s of %s: no member subscribes to all topics", list(list32), topic))
		}
	}
	slices.Sort(reasons)
	return reasons
}

func list(partitions []int32) string {
	texts := make([]string, len(partitions))
	for i, p := range partitions {
		texts[i] = fmt.Sprint(p)
	}
	return strings.Join(texts, ", ")
}
