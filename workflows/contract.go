package workflows

import (
	"encoding/json"
	"fmt"
	"time"

	commonpb "go.temporal.io/api/common/v1"
	"go.temporal.io/sdk/converter"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"sluice/policy"
)

// ContractVersion is the version of the messages between holders and gates.
const ContractVersion = 1

// Names that are part of the contract.
const (
	WorkflowType     = "sluice.Admission"
	WorkflowIDPrefix = "sluice/"
	TaskQueue        = "sluice"

	UpdateExchange = "exchange"
	UpdateWait     = "wait"
	UpdateOperate  = "operate"

	SignalExchange  = "exchange"
	SignalConfigure = "configure"
	SignalPause     = "pause"
	SignalResume    = "resume"

	QueryGrants = "grants"
	QueryStatus = "status"
)

// TaskTimeout is the workflow task timeout of a gate: if a host dies with a task
// in hand, another one goes on after so long.
const TaskTimeout = 2 * time.Second

// Error types that cross Temporal.
const (
	ErrTypeStillQueued     = "sluice.StillQueued"
	ErrTypeQueueTimeout    = "sluice.QueueTimeout"
	ErrTypeQueueFull       = "sluice.QueueFull"
	ErrTypeNeverAdmissible = "sluice.NeverAdmissible"
	ErrTypeTooLate         = "sluice.TooLate"
	ErrTypeUnavailable     = "sluice.Unavailable"
	ErrTypeLeaseLost       = "sluice.LeaseLost"
	ErrTypePolicyConflict  = "sluice.PolicyConflict"
	// ErrTypeTicketCancelled ends a wait because a person took its ticket out
	// of the queue. Not retryable: a retry would only queue again.
	ErrTypeTicketCancelled = "sluice.TicketCancelled"
	// ErrTypeMalformed ends an update whose message could not be taken in.
	ErrTypeMalformed = "sluice.Malformed"
)

// Bounds of the messages. What exceeds them is refused, named and counted.
const (
	MaxExchangeBytes = 1 << 20
	MaxExchangeItems = 20_000
	MaxHolderID      = 128
	MaxTextBytes     = 512 // of who, why and other words of people
)

// Start is the argument of the admission workflow.
type Start struct {
	Contract int             `json:"contract"`
	GateID   string          `json:"gate_id"`
	Policy   json.RawMessage `json:"policy"` // canonical JSON of policy.Gate
	// LearnFor is set where an earlier run of the gate was lost within the last
	// holder TTL: for so long holders present what they have.
	LearnFor time.Duration `json:"learn_for,omitempty"`
	// RunEvents is how long a run's history may grow before it continues as
	// new, which it may sooner. 0: DefaultRunEvents.
	RunEvents int `json:"run_events,omitempty"`
	// Rules of the first run; 0: the oldest, which is what those kept that
	// didn't say. Ignored where State is set.
	Rules uint32 `json:"rules,omitempty"`

	// Carried over from the previous run.
	State    []byte    `json:"state,omitempty"` // compressed snapshot
	Overlays []Overlay `json:"overlays,omitempty"`
	Runs     int       `json:"runs,omitempty"` // how many came before
	Log      []Act     `json:"log,omitempty"`  // the last acts of operators
	// Lower are limits that the provider named, lower than the policy's.
	Lower []LowerLimit `json:"lower,omitempty"`
}

// LowerLimit is a limit that the provider names in a header and that is lower
// than the policy's. It is shown and not enforced.
type LowerLimit struct {
	At     time.Time `json:"at"` // when it was last seen
	Header string    `json:"header"`
	Unit   string    `json:"unit"`
	Limit  int64     `json:"limit"` // what the provider allows in Per
	Per    Duration  `json:"per"`
	Policy int64     `json:"policy"` // what the policy allows in Per
}

// DefaultRunEvents leaves room below the 4,096 events at which the server
// suggests to continue as new.
const DefaultRunEvents = 3_500

// Overlay is a change of a policy's fields that an operator made.
type Overlay struct {
	Set   map[string]json.RawMessage `json:"set"`            // fields as in the policy's JSON
	Until time.Time                  `json:"until,omitzero"` // zero: until replaced
	Who   string                     `json:"who,omitempty"`
	Why   string                     `json:"why,omitempty"`
}

// Configure is the argument of the signal configure. Either Policy or Set.
type Configure struct {
	// Policy replaces the gate's policy if its revision is higher.
	Policy json.RawMessage `json:"policy,omitempty"`
	// Set overlays fields, named as in the policy's JSON; an empty map, with
	// Reset, removes all overlays.
	Set   map[string]json.RawMessage `json:"set,omitempty"`
	Reset bool                       `json:"reset,omitempty"`
	For   Duration                   `json:"for,omitempty"` // 0: until replaced
	Who   string                     `json:"who,omitempty"`
	Why   string                     `json:"why,omitempty"`
}

// Pause is the argument of the signals pause and resume.
type Pause struct {
	Who string `json:"who,omitempty"`
	Why string `json:"why,omitempty"`
}

// Operate is the argument of the update operate: one act of an operator, whose
// answer is the [Act] that it came to.
type Operate struct {
	// ID names the act, at most MaxActID bytes. Sent again, it is done once: the
	// answer is the same, as long as the act is among the last ones. Empty: it
	// is done each time.
	ID string `json:"id,omitempty"`
	Do Doing  `json:"do"`
	// Set are the fields of DoSet, as [policy.Gate.With] takes them.
	Set map[string]json.RawMessage `json:"set,omitempty"`
	For Duration                   `json:"for,omitempty"` // of DoSet; 0: until it is reset
	// Ticket or Lease names the one that is meant, by its number in the status;
	// Label by its label, where only one has that.
	Ticket uint64 `json:"ticket,omitempty"`
	Lease  uint64 `json:"lease,omitempty"`
	Label  string `json:"label,omitempty"`
	Who    string `json:"who,omitempty"`
	Why    string `json:"why,omitempty"`
}

// MaxActID bounds Operate.ID, in bytes.
const MaxActID = 64

// Doing is what an operator does.
type Doing string

const (
	DoPause        Doing = "pause"         // admit nothing
	DoResume       Doing = "resume"        // end a pause
	DoSet          Doing = "set"           // lay fields over the policy
	DoReset        Doing = "reset"         // take away all that was laid over it
	DoCancelTicket Doing = "cancel_ticket" // take a ticket out of the queue; its caller gets sluice.TicketCancelled
	DoRevokeLease  Doing = "revoke_lease"  // end a lease; its holder learns at its next exchange
)

// Act is one act of an operator, as the status shows it.
type Act struct {
	ID      string          `json:"id,omitempty"`
	At      time.Time       `json:"at"`
	What    string          `json:"what"`
	Who     string          `json:"who,omitempty"`
	Why     string          `json:"why,omitempty"`
	Error   string          `json:"error,omitempty"`   // why it was refused
	Changes []policy.Change `json:"changes,omitempty"` // of what is in force
	Until   time.Time       `json:"until,omitzero"`    // when that goes back by itself
}

// Duration is written as a Go duration ("10m") and read from one or from
// nanoseconds.
type Duration time.Duration

// MarshalJSON writes the duration as text.
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(d).String()) }

// UnmarshalJSON reads text such as "10m", or nanoseconds.
func (d *Duration) UnmarshalJSON(data []byte) error {
	var text string
	if json.Unmarshal(data, &text) != nil {
		return json.Unmarshal(data, (*int64)(d))
	}
	v, err := time.ParseDuration(text)
	*d = Duration(v)
	return err
}

// Encode makes a payload of a contract message: binary protobuf, or its JSON
// form where the other side speaks JSON.
func Encode(m proto.Message, asJSON bool) (converter.RawValue, error) {
	var c converter.PayloadConverter = binaryConverter
	if asJSON {
		c = jsonConverter
	}
	p, err := c.ToPayload(m)
	return converter.NewRawValue(p), err
}

var (
	binaryConverter = converter.NewProtoPayloadConverter()
	jsonConverter   = converter.NewProtoJSONPayloadConverter()
)

// Decode reads a contract message from a payload in either form. Unknown JSON
// fields are left alone: a newer holder may say more than this program knows.
func Decode(p *commonpb.Payload, m proto.Message) (asJSON bool, err error) {
	if len(p.GetData()) > MaxExchangeBytes {
		return false, fmt.Errorf("message has %d bytes; allowed: at most %d", len(p.GetData()), MaxExchangeBytes)
	}
	switch encoding := string(p.GetMetadata()[converter.MetadataEncoding]); encoding {
	case converter.MetadataEncodingProto:
		return false, proto.Unmarshal(p.GetData(), m)
	case converter.MetadataEncodingProtoJSON, converter.MetadataEncodingJSON:
		return true, protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(p.GetData(), m)
	default:
		return false, fmt.Errorf("payload encoding %.40q; allowed: %s, %s, %s", encoding,
			converter.MetadataEncodingProto, converter.MetadataEncodingProtoJSON, converter.MetadataEncodingJSON)
	}
}
