package correlate

import (
	"inferspan/correlate/semconv"
	"inferspan/correlate/signal"
)

// The documented operations. Score and rerank paths are one operation;
// classification and pooling have none of their own and are embeddings, the
// nearest: they too give one vector per input.
var (
	opChat       = operation{"chat", "LLM", semconv.SpanVLLMEntryChat, false, "chatcmpl-", false}
	opResponses  = operation{"chat", "LLM", semconv.SpanVLLMEntryChat, false, "resp_", false}
	opCompletion = operation{"text_completion", "LLM", semconv.SpanVLLMEntryTextCompletion, false, "cmpl-", false}
	opEmbeddings = operation{"embeddings", "EMBEDDING", semconv.SpanVLLMEntryEmbeddings, true, "embd-", false}
	opClassify   = operation{"embeddings", "EMBEDDING", semconv.SpanVLLMEntryEmbeddings, true, "classify-", false}
	opPooling    = operation{"embeddings", "EMBEDDING", semconv.SpanVLLMEntryEmbeddings, true, "pooling-", false}
	opScore      = operation{"rerank", "RERANKER", semconv.SpanVLLMEntryRerank, true, "score-", false}
)

// vllmOperations are those by path. Paths that are not here (health, metrics, models,
// tokenizer) give no span.
var vllmOperations = map[string]*operation{
	"/v1/chat/completions":       &opChat,
	"/v1/chat/completions/batch": &opChat,
	"/v1/messages":               &opChat,
	"/cohere/v2/chat":            &opChat,
	"/v1/responses":              &opResponses,
	"/v1/completions":            &opCompletion,
	"/generate":                  &opCompletion,
	"/v1/embeddings":             &opEmbeddings,
	"/v2/embed":                  &opEmbeddings,
	"/classify":                  &opClassify,
	"/v1/classify":               &opClassify,
	"/pooling":                   &opPooling,
	"/v1/pooling":                &opPooling,
	"/score":                     &opScore,
	"/v1/score":                  &opScore,
	"/rerank":                    &opScore,
	"/v1/rerank":                 &opScore,
	"/v2/rerank":                 &opScore,
}

func (vllmRules) operation(path string) *operation { return vllmOperations[path] }

// entryIDs adds who asked, and what the response is called.
func (vllmRules) entryIDs(a *attrs, x *exchange, stream signal.Opt[bool]) {
	putOpt(a, semconv.AttrGenAIUserID, x.body.User)
	if stream.OK && stream.V {
		a.text(semconv.AttrSessionID, x.resp)
	}
	a.text(semconv.AttrGenAIResponseID, x.resp)
	putOpt(a, semconv.AttrGenAIResponseModel, x.model)
}

func (vllmRules) entryRest(*Correlator, *attrs, *exchange, []view, signal.Opt[bool], *marks) {}
