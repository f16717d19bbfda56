package kafka

import (
	"context"
	"errors"
	"fmt"

	"github.com/IBM/sarama"
	"go.uber.org/zap"
)

// Stay keeps the group's Close from leaving: the member's partitions stay its
// own for a session timeout, as if the process had died.
func (c *Clients) Stay() { c.group.stay.Store(true) }

// Leave takes a member out of the group by its id, and by its instance id where
// it is a static one (KIP-345), over the Admin client.
//
// A dynamic member leaves by itself when sarama's group is closed, but tries
// only once, on a connection that InterruptJoin may have cut; without leaving,
// its partitions would lie idle for a whole session timeout. A static one never
// leaves by itself. A member that the coordinator does not know has left
// already. With both ids another process that has the instance id by now keeps
// it: the error is then FENCED_INSTANCE_ID.
func (c *Clients) Leave(ctx context.Context, memberID string) error {
	if memberID == "" {
		return nil
	}
	member := sarama.MemberIdentity{MemberId: memberID}
	if c.opts.InstanceID != "" {
		member.GroupInstanceId = &c.opts.InstanceID
	}
	fenced := false
	err := c.faults.again(ctx, "leaving the group", func(ctx context.Context) error {
		resp, err := atCoordinator(ctx, c.Admin, c.opts.GroupID, func(b *sarama.Broker) (*sarama.LeaveGroupResponse, error) {
			return b.LeaveGroup(&sarama.LeaveGroupRequest{
				Version: leaveVersion, GroupId: c.opts.GroupID, Members: []sarama.MemberIdentity{member},
			})
		})
		if err != nil {
			return err
		}
		fault := leaveFault(resp)
		if fenced = errors.Is(fault, sarama.ErrFencedInstancedId); fenced {
			return nil // which no other try would change
		}
		return c.lookUpAfter(ctx, c.opts.GroupID, fault)
	}, zap.String("group", c.opts.GroupID), zap.String("member_id", memberID))
	if fenced {
		return fmt.Errorf("leaving the group as %s: %w", c.opts.InstanceID, sarama.ErrFencedInstancedId)
	}
	return err
}

// leaveVersion is the first flexible one, which every broker since 2.4 knows.
const leaveVersion = 4

func leaveFault(resp *sarama.LeaveGroupResponse) error {
	errs := []sarama.KError{resp.Err}
	for _, m := range resp.Members {
		errs = append(errs, m.Err)
	}
	for _, err := range errs {
		if err != sarama.ErrNoError && err != sarama.ErrUnknownMemberId {
			return err
		}
	}
	return nil
}
