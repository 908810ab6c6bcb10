// Package do is an example: a lease around any code, here one that costs units
// of a budget.
package do

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sluice/activities"
	"sluice/admission"
	"sluice/policy"
)

// Example runs code under a lease of a gate. In an activity the plugin has put
// the gates into the context already; a tool makes its own.
func Example() {
	p, err := policy.New(policy.Gate{
		Provider: "example", Endpoint: "https://api.example.com/v1", Name: "pages", MaxInFlight: 2,
		Budgets: []admission.Budget{{Unit: "pages", Rate: admission.Rate{Limit: 100, Per: time.Minute, Burst: 100}}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	gates := activities.NewLocalGates(p, activities.GatesOptions{})
	ctx := activities.WithGates(context.Background(), gates)

	// convert estimates what it will take, and says what it took.
	convert := func(estimate, pages int64) error {
		cost := activities.Cost{Units: map[string]int64{"pages": estimate}}
		return activities.Do(ctx, "pages", cost, func(ctx context.Context) error {
			activities.ReportUsage(ctx, map[string]int64{"pages": pages})
			fmt.Println("converted", pages, "pages")
			return nil
		})
	}
	fmt.Println(convert(100, 40))
	fmt.Println(convert(60, 60)) // at once: 60 came back
	err = convert(101, 1)
	fmt.Println(errors.Is(err, activities.ErrNeverAdmissible), err)
	fmt.Println(gates.Close(ctx))
	// Output:
	// converted 40 pages
	// <nil>
	// converted 60 pages
	// <nil>
	// true gate example@api.example.com/v1#pages: pages 101 can never be admitted; the policy gives at most 100
	// <nil>
}
