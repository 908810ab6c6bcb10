package workflows

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	commonpb "go.temporal.io/api/common/v1"
	"go.temporal.io/sdk/converter"
	"google.golang.org/protobuf/proto"

	"sluice/admission"
	"sluice/workflows/contract"
)

// FuzzExchange feeds a gate whatever may arrive: nothing panics, the cap holds,
// and the state can always be carried over.
func FuzzExchange(f *testing.F) {
	for _, m := range []*contract.Exchange{
		{Contract: 1, Holder: &contract.Holder{Id: "a", Generation: 1}, Seq: 1, Acquire: []*contract.Acquire{acquire(1)}},
		{Contract: 1, Holder: &contract.Holder{Id: "a", Generation: 2}, Seq: 7, Resync: true, Present: []*contract.Present{{Ticket: acquire(1), Lease: 7}}},
		{Contract: 1, Holder: &contract.Holder{Id: "a", Generation: 1}, Seq: 2, Release: []*contract.Release{{Lease: 1, Outcome: contract.Outcome_OUTCOME_OVERLOAD}}},
	} {
		data, err := proto.Marshal(m)
		require.NoError(f, err)
		f.Add("binary/protobuf", data, data)
	}
	f.Add("json/plain", []byte(`{"contract":1,"holder":{"id":"a"},"seq":"1","acquire":[{"ticket":"AA==","number":"1"}]}`), []byte(`{}`))
	f.Fuzz(func(t *testing.T, encoding string, first, second []byte) {
		now := admission.InstantOf(time.Unix(1_800_000_000, 0))
		s, err := admission.New(now, admission.Limits{MaxInFlight: 3, MaxCooldown: time.Minute, MaxQueue: 50}, admission.Options{})
		require.NoError(t, err)
		var x admission.Exchange
		for i, data := range [][]byte{first, second, first} {
			now = now.Add(time.Duration(i) * time.Second)
			m := &contract.Exchange{}
			if _, err := Decode(&commonpb.Payload{Metadata: map[string][]byte{converter.MetadataEncoding: []byte(encoding)}, Data: data}, m); err != nil {
				continue
			}
			if ExchangeOf(m, now, &x) != nil {
				continue
			}
			a := s.Apply(now, &x)
			limits := s.Limits()
			_, err := Encode(AnswerOf(&a, &limits, x.Ask), false)
			require.NoError(t, err)
			if !x.Resync {
				require.LessOrEqual(t, a.Depth, 50)
			}
			restored, err := restore(compress(s.Snapshot(nil)))
			require.NoError(t, err)
			require.Equal(t, s.Snapshot(nil), restored.Snapshot(nil))
		}
	})
}
