package kafka

import (
	"context"

	"github.com/IBM/sarama"
	"go.uber.org/zap"
)

// Leave takes a member out of the group by its id, over the Admin client.
// sarama's group leaves by itself when it is closed, but tries only once, on a
// connection that InterruptJoin may have cut; without leaving, the member's
// partitions would lie idle for a whole session timeout. A member that the
// coordinator does not know has left already.
func (c *Clients) Leave(ctx context.Context, memberID string) error {
	if memberID == "" {
		return nil
	}
	return c.faults.again(ctx, "leaving the group", func(ctx context.Context) error {
		resp, err := atCoordinator(ctx, c.Admin, c.opts.GroupID, func(b *sarama.Broker) (*sarama.LeaveGroupResponse, error) {
			return b.LeaveGroup(&sarama.LeaveGroupRequest{
				Version: leaveVersion, GroupId: c.opts.GroupID,
				Members: []sarama.MemberIdentity{{MemberId: memberID}},
			})
		})
		if err != nil {
			return err
		}
		return c.lookUpAfter(ctx, c.opts.GroupID, leaveFault(resp))
	}, zap.String("group", c.opts.GroupID), zap.String("member_id", memberID))
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
