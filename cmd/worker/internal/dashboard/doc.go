// Package dashboard is the page that shows the gates of a namespace live: numbers,
// plots over the last minutes, and whatever waits with its reason.
//
//	browser --GET /-------> index.html and its assets, which are in the program
//	        --GET /events-> a stream: what there was, then what there is, once a second
//	        --POST /act---> an operator's act; only where control is allowed
//
//	sampler --query `status`--> gates; one for all browsers
//
// It has authority over nothing but its port. It reads gates by queries, which
// change nothing, and what it remembers is gone with the process.
//
// # Invariants
//
//   - However many browsers look, a gate is asked once per interval: queries are
//     billable, and a gate answers one at a time. While nobody looks, none is asked,
//     unless Options.Always.
//   - A browser that takes nothing in is cut off; it comes back by itself.
//   - Without Options.Control no request changes anything. With it, an act needs the
//     token, which only the printed address has, and comes from the page itself:
//     another site can't make one, nor read anything, not even by making its name
//     resolve to this address.
//   - Nothing is loaded from elsewhere.
//
// # When something breaks
//
// A gate that doesn't answer is asked less and less often, up to every 30 s; the page
// says since when, and shows what was known. A stream that ends is opened again by
// the browser and goes on where it stopped.
package dashboard
