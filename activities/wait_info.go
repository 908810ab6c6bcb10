package activities

import (
	"context"
	"encoding/json"
	"time"

	commonpb "go.temporal.io/api/common/v1"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/temporal"
)

// What a waiting activity waits for is seen in its heartbeat details, where the user
// has recorded none. Nobody else may take them for the user's: they are marked, the
// interceptor hides them from the attempts that follow, and they are taken away when
// the wait is over.

// waitInfo is what the details of a waiting activity say.
type waitInfo struct {
	Gate    string    `json:"waits_for_gate"`
	Since   time.Time `json:"since"`   // by this process's clock
	Because string    `json:"because"` // as the gate last told
	Queued  int64     `json:"queued_at_gate"`
}

// markKey and markValue are in the metadata of the payload, which codecs keep.
const (
	markKey   = "sluice"
	markValue = "waits"
)

// details are the heartbeat details that say it.
func (w waitInfo) details() []any {
	data, err := json.Marshal(w)
	if err != nil {
		return nil // plain data
	}
	return []any{converter.NewRawValue(&commonpb.Payload{
		Metadata: map[string][]byte{converter.MetadataEncoding: []byte(converter.MetadataEncodingJSON), markKey: []byte(markValue)},
		Data:     data,
	})}
}

// outlook is implemented by gates that know why one waits.
type outlook interface {
	// outlook is why the queue may stand, and how many are in it.
	outlook() (because string, queued int64)
}

// waitInfoOf is what to say of a wait for a gate, if there is anything. own, if not
// empty, is why it can't end.
func waitInfoOf(g Gate, since time.Time, own string) []any {
	o, ok := g.(outlook)
	if !ok {
		return nil
	}
	because, queued := o.outlook()
	if own != "" {
		because = own
	}
	return waitInfo{Gate: g.Policy().ID(), Since: since.UTC(), Because: because, Queued: queued}.details()
}

// outlook implements outlook.
func (h *holder) outlook() (because string, queued int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch left := h.clock.until(h.cooldown); {
	case !h.unavailable.IsZero() && time.Since(h.unavailable) > unavailableAfter:
		because = "the gate can't be reached"
	case h.paused:
		because = "the gate is paused"
	case h.cooldown != 0 && left > 0:
		because = "cooldown until " + h.cooldown.Time().Format(time.RFC3339)
	default:
		because = "its turn has not come"
	}
	return because, h.depth
}

// ownDetails reports whether the previous attempt's heartbeat details are what Sluice
// said of its wait.
func ownDetails(ctx context.Context, next interceptor.ActivityOutboundInterceptor) bool {
	var raw converter.RawValue
	if !next.HasHeartbeatDetails(ctx) || next.GetHeartbeatDetails(ctx, &raw) != nil {
		return false
	}
	return string(raw.Payload().GetMetadata()[markKey]) == markValue
}

// HasHeartbeatDetails hides what Sluice said of a wait.
func (o *activityOutbound) HasHeartbeatDetails(ctx context.Context) bool {
	return o.Next.HasHeartbeatDetails(ctx) && !ownDetails(ctx, o.Next)
}

// GetHeartbeatDetails hides what Sluice said of a wait.
func (o *activityOutbound) GetHeartbeatDetails(ctx context.Context, d ...any) error {
	if ownDetails(ctx, o.Next) {
		return temporal.ErrNoData
	}
	return o.Next.GetHeartbeatDetails(ctx, d...)
}

// takeBack takes the details of a wait away that is over, unless the user has
// recorded some.
func (a *attempt) takeBack(ctx context.Context) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.told && !a.recorded && ctx.Err() == nil {
		activity.RecordHeartbeat(context.WithValue(ctx, beatKey{}, true))
	}
	a.told = false
}
