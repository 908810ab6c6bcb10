package workflows

import (
	"fmt"
	"time"

	"sluice/admission"
	"sluice/workflows/contract"
)

// ExchangeOf turns a message into what the scheduler takes, and refuses what
// can't be one. buf is reused between exchanges.
func ExchangeOf(m *contract.Exchange, now admission.Instant, buf *admission.Exchange) error {
	if err := checkHolder(m.GetContract(), m.GetHolder()); err != nil {
		return err
	}
	if items := len(m.Acquire) + len(m.Cancel) + len(m.HandBack) + len(m.Release) + len(m.Present); items > MaxExchangeItems {
		return fmt.Errorf("exchange has %d items; allowed: at most %d", items, MaxExchangeItems)
	}
	if m.Seq == 0 {
		return fmt.Errorf("seq is 0; allowed: from 1 up")
	}
	x := buf
	*x = admission.Exchange{
		Holder: m.Holder.Id, Generation: m.Holder.Generation, Seq: m.Seq, Confirmed: m.Confirmed,
		Resync: m.Resync, CooldownUntil: admission.Instant(m.CooldownUntil), LastStart: admission.Instant(m.LastStart),
		Rules: admission.Rules(m.RulesMax), RefusedBefore: m.RefusedBefore, RoundTrip: time.Duration(max(m.RoundTrip, 0)), Ask: m.Ask,
		Acquire: x.Acquire[:0], Cancel: x.Cancel[:0], HandBack: x.HandBack[:0], Release: x.Release[:0], Present: x.Present[:0],
	}
	for _, a := range m.Acquire {
		x.Acquire = append(x.Acquire, requestOf(a, now))
	}
	for _, c := range m.Cancel {
		x.Cancel = append(x.Cancel, admission.Cancel{
			Ticket: c.GetNumber(), Attempt: c.GetAttempt(), Park: c.GetPark(), LeftAt: admission.Instant(c.GetLeftAt()),
		})
	}
	for _, b := range m.HandBack {
		x.HandBack = append(x.HandBack, admission.HandBack{Lease: b.GetLease(), Late: b.GetReason() == contract.HandBackReason_HAND_BACK_LATE})
	}
	for _, r := range m.Release {
		x.Release = append(x.Release, releaseOf(r))
	}
	for _, p := range m.Present {
		x.Present = append(x.Present, admission.Present{
			Request: requestOf(p.GetTicket(), now), Lease: p.GetLease(), Generation: p.GetGeneration(), StartAt: admission.Instant(p.GetStartAt()),
		})
	}
	return nil
}

func checkHolder(version uint32, h *contract.Holder) error {
	switch {
	case version != ContractVersion:
		return fmt.Errorf("contract version %d; this gate speaks %d", version, ContractVersion)
	case h.GetId() == "" || len(h.GetId()) > MaxHolderID:
		return fmt.Errorf("holder.id has %d bytes; allowed: 1 to %d", len(h.GetId()), MaxHolderID)
	}
	return nil
}

func requestOf(a *contract.Acquire, now admission.Instant) admission.Request {
	r := admission.Request{
		Number: a.GetNumber(), Label: a.GetLabel(), Attempt: a.GetAttempt(), Weight: a.GetWeight(),
		Cost: costsOf(a.GetCost()), Hold: admission.HoldAttempt,
	}
	copy(r.Key[:], a.GetTicket())
	if len(a.GetTicket()) != len(r.Key) {
		r.Number = 0 // no ticket: the scheduler counts it and goes on
	}
	if a.GetHold() == contract.Hold_HOLD_CALL {
		r.Hold = admission.HoldCall
	}
	if d := a.GetDeadline(); d > 0 {
		r.Deadline = now.Add(time.Duration(d))
	}
	return r
}

func releaseOf(r *contract.Release) admission.Release {
	f := admission.Feedback{
		Status: r.GetStatus(), Asked: -1, Source: r.GetHintSource(), Actual: costsOf(r.GetActual()),
		StartedAt: admission.Instant(r.GetStartedAt()),
	}
	if r.AskedCooldown != nil {
		f.Asked = time.Duration(max(r.GetAskedCooldown(), 0))
	}
	switch r.GetOutcome() {
	case contract.Outcome_OUTCOME_SUCCESS:
		f.Outcome = admission.OutcomeSuccess
	case contract.Outcome_OUTCOME_OVERLOAD:
		f.Outcome = admission.OutcomeOverload
	case contract.Outcome_OUTCOME_ABANDONED:
		f.Outcome = admission.OutcomeAbandoned
	default:
		f.Outcome = admission.OutcomeError
	}
	return admission.Release{Lease: r.GetLease(), Generation: r.GetGeneration(), Keep: r.GetKeep(), Feedback: f}
}

func costsOf(costs []*contract.Cost) []admission.UnitCost {
	if len(costs) == 0 {
		return nil
	}
	list := make([]admission.UnitCost, len(costs))
	for i, c := range costs {
		list[i] = admission.UnitCost{Unit: c.GetUnit(), N: c.GetN()}
	}
	return list
}

var refusalKinds = map[admission.RefusalKind]contract.RefusalKind{
	admission.RefusedQueueTimeout:    contract.RefusalKind_REFUSAL_QUEUE_TIMEOUT,
	admission.RefusedQueueFull:       contract.RefusalKind_REFUSAL_QUEUE_FULL,
	admission.RefusedNeverAdmissible: contract.RefusalKind_REFUSAL_NEVER_ADMISSIBLE,
	admission.RefusedTooLate:         contract.RefusalKind_REFUSAL_TOO_LATE,
	admission.RefusedInvalid:         contract.RefusalKind_REFUSAL_INVALID,
	admission.RefusedSuperseded:      contract.RefusalKind_REFUSAL_SUPERSEDED,
	admission.RefusedPolicy:          contract.RefusalKind_REFUSAL_POLICY_CONFLICT,
	admission.RefusedOperator:        contract.RefusalKind_REFUSAL_OPERATOR,
}

// AnswerOf turns what the scheduler says into a message.
func AnswerOf(a *admission.Answer, limits *admission.Limits, ask []uint64) *contract.Answer {
	m := &contract.Answer{
		Contract: ContractVersion, Now: int64(a.Now), StateCounter: a.Counter, Rules: uint32(a.Rules), Seq: a.Seq,
		Paused: a.Paused, InFlight: a.InFlight, Cap: a.Cap, Depth: int64(a.Depth), Holders: int32(a.Holders),
		NotBefore: int64(a.NotBefore), ComeAgain: int64(a.ComeAgain), Resync: a.Resync, Superseded: a.Superseded, MayWait: a.MayWait,
		HandBackTo: a.HandBackTo,
		Parked:     int64(a.Parked), LostHolders: a.LostHolders, ExpiredLeases: a.Expired,
	}
	if !limits.Pacing.IsZero() || len(limits.Budgets) > 0 {
		m.StartWindow = int64(limits.StartWindow) // where only places are counted, late harms nobody
	}
	if limits.Pacing.Spaced() {
		m.Spacing = int64(limits.Pacing.Spacing())
	}
	if a.CooldownUntil > a.Now {
		cause := a.Cause.Source
		if cause == "" {
			cause = "fallback"
		}
		m.Cooldown = &contract.Cooldown{Until: int64(a.CooldownUntil), Cause: fmt.Sprintf("%d %s", a.Cause.Status, cause)}
	}
	for i := range a.Notices {
		n := &a.Notices[i]
		m.Notice = n.N
		switch n.Kind {
		case admission.NoticeGrant:
			g := &contract.Grant{
				Number: n.Ticket, Lease: n.Lease, Generation: n.Generation, StartAt: int64(n.StartAt), Window: int64(n.Window),
				Reasons: reasonsOf(&n.Waits, limits), Notice: n.N, Position: n.Position, Depth: n.Depth,
			}
			if n.Since.Add(n.Waits.Total()) != n.StartAt {
				g.Since = int64(n.Since)
			}
			m.Grants = append(m.Grants, g)
		case admission.NoticeRefusal:
			m.Refusals = append(m.Refusals, &contract.Refusal{
				Number: n.Ticket, Kind: refusalKinds[n.Refusal.Kind], ComeAgain: int64(n.Refusal.ComeAgain),
				Field: n.Refusal.Field, Value: n.Refusal.Value, Bound: n.Refusal.Bound, Notice: n.N,
				Account: accountOf(&n.Account, limits),
			})
		case admission.NoticeRevoked:
			m.Revoked = append(m.Revoked, &contract.Revoked{Number: n.Ticket, Lease: n.Lease, Cause: contract.RevokeCause(n.Revoked), Notice: n.N})
		case admission.NoticeLeft:
			m.Left = append(m.Left, &contract.Left{Number: n.Ticket, Account: accountOf(&n.Account, limits), Notice: n.N})
		}
	}
	for i, p := range a.Positions {
		if i < len(ask) {
			m.Position = append(m.Position, &contract.Position{Number: ask[i], Position: int32(p)})
		}
	}
	return m
}

// accountOf is nil where there is none, under rules 1.
func accountOf(a *admission.Account, limits *admission.Limits) *contract.Account {
	if a.Until == 0 {
		return nil
	}
	return &contract.Account{
		Reasons: reasonsOf(&a.Waits, limits), Since: int64(a.Since), Until: int64(a.Until), Position: a.Position, Depth: a.Depth,
	}
}

func reasonsOf(w *admission.Waits, limits *admission.Limits) []*contract.Waited {
	var list []*contract.Waited
	for i, d := range w {
		if d > 0 {
			list = append(list, &contract.Waited{Reason: admission.Wait(i).Name(limits), Duration: int64(d)})
		}
	}
	return list
}
