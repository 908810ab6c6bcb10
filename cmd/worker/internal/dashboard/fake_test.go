package dashboard

import (
	"context"
	"errors"
	"sync"
	"time"

	"sluice/policy"
	"sluice/workflows"
)

// fakeGates answer at once, and count.
type fakeGates struct {
	mu    sync.Mutex
	list  []string
	asked map[string][]time.Time
	dead  map[string]bool // these don't answer
	st    workflows.Status
	acts  []workflows.Operate
}

func newFakeGates(list ...string) *fakeGates {
	g, err := policy.Gate{Provider: "test", Endpoint: "http://gate.test", MaxInFlight: 4}.Normalize()
	if err != nil {
		panic(err)
	}
	return &fakeGates{st: workflows.Status{Policy: g, InForce: g}, list: list, asked: map[string][]time.Time{}, dead: map[string]bool{}}
}

func (f *fakeGates) Gates(context.Context) ([]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.list, nil
}

var errDead = errors.New("no worker answers for the gate")

func (f *fakeGates) Status(_ context.Context, gate string) (workflows.Status, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked[gate] = append(f.asked[gate], time.Now())
	if f.dead[gate] {
		return workflows.Status{}, errDead
	}
	st := f.st
	st.Gate, st.Now, st.FirstRun = gate, time.Now(), "first"
	return st, nil
}

func (f *fakeGates) Act(_ context.Context, _ string, o workflows.Operate) (workflows.Act, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.acts = append(f.acts, o)
	return workflows.Act{ID: o.ID, What: string(o.Do), Who: o.Who, Why: o.Why}, nil
}

func (f *fakeGates) change(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
}

// times is how often a gate was asked.
func (f *fakeGates) times(gate string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.asked[gate])
}
