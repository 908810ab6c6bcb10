package activities

import "time"

// outages are the times in which a gate did not answer, as this process saw them.
// A server that refuses for load is there.
type outages struct {
	since time.Time // of the one under way; zero: none
	past  []outage  // the last ones
}

type outage struct{ from, to time.Time }

// maxOutages bounds those that are remembered.
const maxOutages = 64

// began notes a try that came to nothing, by when it was sent.
func (o *outages) began(sent time.Time) {
	if o.since.IsZero() {
		o.since = sent
	}
}

// ended notes an answer.
func (o *outages) ended(at time.Time) {
	if o.since.IsZero() {
		return
	}
	if len(o.past) == maxOutages {
		o.past = append(o.past[:0], o.past[1:]...)
	}
	o.past = append(o.past, outage{o.since, at})
	o.since = time.Time{}
}

// within is how much of a time the gate did not answer in.
func (o *outages) within(from, to time.Time) (sum time.Duration) {
	all := o.past
	if !o.since.IsZero() {
		all = append(all[:len(all):len(all)], outage{o.since, to})
	}
	for _, out := range all {
		begin, end := out.from, out.to
		if begin.Before(from) {
			begin = from
		}
		if end.After(to) {
			end = to
		}
		sum += max(end.Sub(begin), 0)
	}
	return sum
}
