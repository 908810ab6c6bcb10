package policy

import (
	"bytes"
	"encoding/json"
	"strings"
	"time"
)

// googleRetryDelayName is how hints call the delay in a Google error body.
const googleRetryDelayName = "body.error.details.retryDelay"

// retryInfoType is the type of the error detail that has the delay.
const retryInfoType = "google.rpc.RetryInfo"

// googleRetryDelay is the longest retryDelay of the RetryInfo details of a
// Google error body (https://google.aip.dev/193): an object with error.details,
// or a list of such objects, as a stream of answers begins. A body that is no
// JSON, such as a proxy's page, is passed over; one that is and can't be read,
// such as one that was cut off, is reported.
func (r *response) googleRetryDelay(body []byte) (longest time.Duration, found bool) {
	type envelope struct {
		Error struct {
			Details []struct {
				Type  string          `json:"@type"`
				Delay json.RawMessage `json:"retryDelay"`
			} `json:"details"`
		} `json:"error"`
	}
	body = bytes.TrimSpace(body)
	var envelopes []envelope
	var err error
	switch {
	case bytes.HasPrefix(body, []byte("[")):
		err = json.Unmarshal(body, &envelopes)
	case bytes.HasPrefix(body, []byte("{")):
		envelopes = make([]envelope, 1)
		err = json.Unmarshal(body, &envelopes[0])
	default:
		return 0, false
	}
	if err != nil {
		r.report(googleRetryDelayName)
		return 0, false
	}
	for _, e := range envelopes {
		for _, detail := range e.Error.Details {
			if detail.Type[strings.LastIndexByte(detail.Type, '/')+1:] != retryInfoType || detail.Delay == nil {
				continue
			}
			var text string
			delay, ok := time.Duration(0), json.Unmarshal(detail.Delay, &text) == nil
			if ok {
				delay, ok = parseProtoDuration(text)
			}
			if !ok {
				r.report(googleRetryDelayName)
				continue
			}
			longest, found = max(longest, delay), true
		}
	}
	return longest, found
}

// parseProtoDuration reads digits[.digits]s, the JSON form of a protobuf
// Duration (https://protobuf.dev/programming-guides/json/); a negative one is
// malformed here.
func parseProtoDuration(s string) (time.Duration, bool) {
	number, seconds := strings.CutSuffix(s, "s")
	if !seconds || len(s) > longestValue {
		return 0, false
	}
	whole, fraction, ok := splitNumber(number)
	return toMilliseconds(scaled(whole, fraction, time.Second)), ok
}
