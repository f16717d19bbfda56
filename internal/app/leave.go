package app

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/IBM/sarama"
	"go.uber.org/zap"

	"joiner/internal/config"
	"joiner/internal/kube"
)

const (
	// leavePatience bounds the request that takes the member out of its group.
	leavePatience = 3 * time.Second
	// fatePatience bounds asking Kubernetes whether the pod comes back, unless a
	// test has more.
	fatePatience = time.Second
)

// leaves decides, at a stop, whether the member is taken out of the group, by
// group.leave. A dynamic member never comes back as itself. A static one does,
// unless something says that it will not.
func (a *App) leaves(ctx context.Context) bool {
	g := a.o.Config.Group
	if AsksKubernetes(a.o.Config) {
		return a.goneForGood(ctx)
	}
	return g.Leave != config.LeaveNever
}

// AsksKubernetes reports whether a pod of this configuration asks, at its stop,
// whether it is started again, where it runs in Kubernetes.
func AsksKubernetes(c config.Config) bool {
	return c.Group.InstanceID != "" && c.Group.Leave == config.LeaveAuto
}

// goneForGood asks Kubernetes whether this pod is started again. Whatever goes
// wrong means that it is: taking its tasks from a pod that restarts costs two
// rebalances, keeping them for one that does not costs a session timeout.
func (a *App) goneForGood(ctx context.Context) bool {
	k, began := a.o.Kubernetes, time.Now()
	if !k.Inside() {
		a.log.Debug("a static member stays in its group: it may be started again")
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, a.fateLimit)
	defer cancel()
	var fate kube.Fate
	pod, err := PodName(a.o.Config.Group.InstanceID, a.host)
	if err == nil {
		fate, err = k.Fate(ctx, pod)
	}
	fields := []zap.Field{zap.String("kubernetes_pod", pod), zap.Duration("took", time.Since(began))}
	if err != nil {
		a.log.Warn("whether the pod is started again is not known: it stays in its group, and its tasks lie idle for group.session_timeout if it is not",
			append(fields, zap.Error(err))...)
		return false
	}
	a.log.Info("what becomes of the pod", append(fields, zap.Bool("gone", fate.Gone), zap.String("why", fate.Why))...)
	return fate.Gone
}

// errWhichPod: two names that a StatefulSet may have given, of which the pod has
// one.
var errWhichPod = errors.New("which pod this is cannot be told: make group.instance_id the pod's name")

// PodName is the pod's name in Kubernetes, whose host has that name: the instance
// id, which is to be the pod's name, where a StatefulSet may have given it; else
// the host's. It fails where both may be a pod's and differ: there may be no pod
// of the instance id's name, or it may be another one.
func PodName(instance, host string) (string, error) {
	if _, _, err := kube.Ordinal(instance); err != nil {
		return host, nil
	}
	if _, _, err := kube.Ordinal(host); err == nil && host != instance {
		return "", fmt.Errorf("group.instance_id is %s, the host's name %s: %w", instance, host, errWhichPod)
	}
	return instance, nil
}

// leave closes the group, as the last thing of the member: all is committed and
// no claim is left. Failing to leave is no fault of the shutdown.
func (a *App) leave(ctx context.Context, group sarama.ConsumerGroup, leaves bool) error {
	instance := a.o.Config.Group.InstanceID
	if !leaves || instance != "" {
		a.clients.Stay() // sarama leaves for dynamic members only, and whatever it is told
	}
	err := within(ctx, group.Close)
	switch {
	case !leaves:
		a.log.Info("the member stays in the group: its tasks are its own for group.session_timeout",
			zap.String("instance_id", instance), zap.Duration("session_timeout", a.o.Config.Group.SessionTimeout))
		return nil
	case instance == "" && err == nil:
		return nil
	case instance == "":
		a.log.Debug("the group was not left in order", zap.Error(err))
	}
	a.takeOut(ctx)
	return nil
}

// takeOut takes the member out of the group by a request of our own. For a
// dynamic member it is the second try, after sarama's only one on whatever
// connection it had; for a static one the first.
func (a *App) takeOut(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, leavePatience)
	defer cancel()
	id := a.member.LastID()
	if id == "" { // nobody can be named to the coordinator, which may know the member all the same
		a.log.Info("the pod ends before it has had a session: if the group has it already, it is missed after group.session_timeout",
			zap.String("instance_id", a.o.Config.Group.InstanceID), zap.Duration("session_timeout", a.o.Config.Group.SessionTimeout))
		return
	}
	fields := []zap.Field{zap.String("member_id", id), zap.String("instance_id", a.o.Config.Group.InstanceID)}
	switch err := a.clients.Leave(ctx, id); {
	case err == nil:
		a.log.Info("the member has left the group", fields...)
	case errors.Is(err, sarama.ErrFencedInstancedId):
		a.log.Info("the member has a successor of the same group.instance_id, which stays in the group", fields...)
	default:
		a.log.Warn("the group could not be left: the pod's tasks lie idle until its coordinator has missed it for group.session_timeout",
			append(fields, zap.Duration("session_timeout", a.o.Config.Group.SessionTimeout), zap.Error(err))...)
	}
}
