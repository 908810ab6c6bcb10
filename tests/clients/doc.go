// Package clients tests Sluice with the client libraries that people use: their
// current releases, over real HTTP, against a provider on the loopback interface
// that answers as OpenAI and Anthropic do.
//
//	openai-go, anthropic-sdk-go --> activities.Transport --> Provider    one lease per send
//	openai-go, anthropic-sdk-go --> plain HTTP client ----> Provider    one lease around the call,
//	        error --> activities.Do                                     feedback from the error
//
// The libraries are dependencies of these tests alone: Sluice reads their errors
// by shape. What docs/client-libraries.md shows is compiled here.
package clients
