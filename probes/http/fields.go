package httptap

// node is a place in a JSON document that means something to us. One grammar
// serves requests and responses of all APIs: the parser reads fields by it, and
// the redactor keeps nothing that it does not name.
type node uint8

const (
	nodeNone node = iota
	nodeRoot
	nodeNumber // a number of no interest to the parser, safe to share
	nodeWord   // a string, likewise

	// Requests.
	nodeModel
	nodeN
	nodeTemperature
	nodeTopP
	nodeTopK
	nodeMaxTokens
	nodeMaxCompletionTokens
	nodeMaxOutputTokens
	nodeStream
	nodeUser
	nodeStreamOptions
	nodeTyped // an object of which only the type is known
	nodeTools
	nodeTool
	nodeMessages
	nodeMessage
	nodeParts
	nodePart
	nodePrompt
	nodePromptItem
	nodeInput
	nodeInputItem
	nodeText1
	nodeText1Item
	nodeDocuments
	nodeDocument

	// Responses.
	nodeID
	nodeObject
	nodeType
	nodeStatus
	nodeStopReason
	nodeChoices
	nodeChoice
	nodeChoiceIndex
	nodeFinishReason
	nodeChoiceMessage
	nodeToolCalls
	nodeToolCall
	nodeToolCallIndex
	nodeCallFunction
	nodeCallName
	nodeUsage
	nodeInputTokens
	nodeOutputTokens
	nodeCachedTokens
	nodeUsageDetails
	nodeError
	nodeErrorType
	nodeErrorCode
	nodeErrorMessage
	nodeFlatCode
	nodeIncomplete
	nodeIncompleteReason
	nodeOutput
	nodeOutputItem
	nodeOutputItemType
	nodeBlocks
	nodeBlock
	nodeBlockType
	nodeStartBlock
	nodeStartBlockType
	nodeDelta
	nodeDeltaStop
	nodeResponse
	nodeStartMessage // of message_start, or the text of an error
	nodeStartUsage
	nodeStartInput
	nodeData
	nodeDatum

	numNodes
)

// keep says which scalars of a node may be shared: a text in the place of a
// number may not.
type keep uint8

const (
	keepNumber keep = 1 << iota
	keepWord
)

// rule says what a node holds.
type rule struct {
	array   bool     // an array of elem; else an object of members
	elem    node     //
	members []member // sorted by key
	keep    keep     // which scalars may be shared
}

// member is a key of an object. One with nodeNone has a name that may be
// shared and contents that may not.
type member struct {
	key string
	n   node
}

// member returns the node of a key, nodeNone if the grammar does not know it.
func (n node) member(key []byte) node {
	m := grammar[n].members
	lo, hi := 0, len(m)
	for lo < hi {
		mid := (lo + hi) / 2
		if m[mid].key < string(key) {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo < len(m) && m[lo].key == string(key) {
		return m[lo].n
	}
	return nodeNone
}

var grammar = [numNodes]rule{
	nodeRoot: {members: []member{
		{"add_generation_prompt", nodeNumber},
		{"background", nodeNumber},
		{"best_of", nodeNumber},
		{"choices", nodeChoices},
		{"code", nodeFlatCode},
		{"content", nodeBlocks},
		{"content_block", nodeStartBlock},
		{"content_index", nodeNumber},
		{"created", nodeNumber},
		{"created_at", nodeNumber},
		{"data", nodeData},
		{"data_1", nodeText1},
		{"data_2", nodeDocuments},
		{"delta", nodeDelta},
		{"detail", nodeNone},
		{"dimensions", nodeNumber},
		{"documents", nodeDocuments},
		{"echo", nodeNumber},
		{"encoding_format", nodeWord},
		{"error", nodeError},
		{"frequency_penalty", nodeNumber},
		{"id", nodeID},
		{"ignore_eos", nodeNumber},
		{"incomplete_details", nodeIncomplete},
		{"index", nodeNumber},
		{"input", nodeInput},
		{"instructions", nodeNone},
		{"item", nodeTyped},
		{"item_id", nodeWord},
		{"items", nodeDocuments},
		{"logprobs", nodeNumber},
		{"max_completion_tokens", nodeMaxCompletionTokens},
		{"max_output_tokens", nodeMaxOutputTokens},
		{"max_tokens", nodeMaxTokens},
		{"max_tool_calls", nodeNumber},
		{"message", nodeStartMessage},
		{"messages", nodeMessages},
		{"metadata", nodeNone},
		{"min_p", nodeNumber},
		{"min_tokens", nodeNumber},
		{"model", nodeModel},
		{"n", nodeN},
		{"object", nodeObject},
		{"output", nodeOutput},
		{"output_index", nodeNumber},
		{"parallel_tool_calls", nodeNumber},
		{"part", nodeTyped},
		{"presence_penalty", nodeNumber},
		{"priority", nodeNumber},
		{"prompt", nodePrompt},
		{"prompt_token_ids", nodeNone},
		{"queries", nodeText1},
		{"query", nodeText1},
		{"reasoning_effort", nodeWord},
		{"repetition_penalty", nodeNumber},
		{"response", nodeResponse},
		{"response_format", nodeTyped},
		{"results", nodeData},
		{"return_token_ids", nodeNumber},
		{"role", nodeWord},
		{"seed", nodeNumber},
		{"sequence_number", nodeNumber},
		{"service_tier", nodeWord},
		{"skip_special_tokens", nodeNumber},
		{"status", nodeStatus},
		{"stop", nodeNone},
		{"stop_reason", nodeStopReason},
		{"store", nodeNumber},
		{"stream", nodeStream},
		{"stream_options", nodeStreamOptions},
		{"system", nodeNone},
		{"system_fingerprint", nodeWord},
		{"temperature", nodeTemperature},
		{"text", nodeNone},
		{"text_1", nodeText1},
		{"text_2", nodeDocuments},
		{"token_ids", nodeNone},
		{"tokens", nodeNone},
		{"tool_choice", nodeTyped},
		{"tools", nodeTools},
		{"top_k", nodeTopK},
		{"top_logprobs", nodeNumber},
		{"top_n", nodeNumber},
		{"top_p", nodeTopP},
		{"truncation", nodeWord},
		{"type", nodeType},
		{"usage", nodeUsage},
		{"user", nodeUser},
	}},
	nodeNumber: {keep: keepNumber},
	nodeWord:   {keep: keepWord},

	nodeModel:               {keep: keepWord},
	nodeN:                   {keep: keepNumber},
	nodeTemperature:         {keep: keepNumber},
	nodeTopP:                {keep: keepNumber},
	nodeTopK:                {keep: keepNumber},
	nodeMaxTokens:           {keep: keepNumber},
	nodeMaxCompletionTokens: {keep: keepNumber},
	nodeMaxOutputTokens:     {keep: keepNumber},
	nodeStream:              {keep: keepNumber},
	nodeStreamOptions:       {members: []member{{"continuous_usage_stats", nodeNumber}, {"include_usage", nodeNumber}}},
	nodeTyped:               {keep: keepWord, members: []member{{"id", nodeWord}, {"role", nodeWord}, {"status", nodeWord}, {"type", nodeWord}}},
	nodeTools:               {array: true, elem: nodeTool},
	nodeTool:                {members: []member{{"function", nodeNone}, {"type", nodeWord}}},
	nodeMessages:            {array: true, elem: nodeMessage},
	nodeMessage: {members: []member{
		{"content", nodeParts}, {"id", nodeWord}, {"name", nodeNone}, {"reasoning", nodeNone}, {"reasoning_content", nodeNone},
		{"role", nodeWord}, {"status", nodeWord}, {"tool_call_id", nodeNone}, {"tool_calls", nodeParts}, {"type", nodeWord},
	}},
	nodeParts:      {array: true, elem: nodePart},
	nodePart:       {members: []member{{"function", nodeNone}, {"image_url", nodeNone}, {"input_audio", nodeNone}, {"text", nodeNone}, {"type", nodeWord}}},
	nodePrompt:     {array: true, elem: nodePromptItem},
	nodePromptItem: {array: true},
	nodeInput:      {array: true, elem: nodeInputItem},
	nodeInputItem: {members: []member{
		{"content", nodeParts}, {"id", nodeWord}, {"role", nodeWord}, {"status", nodeWord}, {"type", nodeWord},
	}},
	nodeText1:     {array: true, elem: nodeText1Item},
	nodeDocuments: {array: true, elem: nodeDocument},

	nodeID:         {keep: keepWord},
	nodeObject:     {keep: keepWord},
	nodeType:       {keep: keepWord},
	nodeStatus:     {keep: keepWord},
	nodeStopReason: {keep: keepWord},
	nodeChoices:    {array: true, elem: nodeChoice},
	nodeChoice: {members: []member{
		{"delta", nodeChoiceMessage}, {"finish_reason", nodeFinishReason}, {"index", nodeChoiceIndex}, {"logprobs", nodeNone},
		{"matched_stop", nodeNone}, {"message", nodeChoiceMessage}, {"prompt_logprobs", nodeNone}, {"prompt_token_ids", nodeNone}, {"routed_experts", nodeNone},
		{"stop_reason", nodeNone}, {"text", nodeNone}, {"token_ids", nodeNone},
	}},
	nodeChoiceIndex:  {keep: keepNumber},
	nodeFinishReason: {keep: keepWord},
	nodeChoiceMessage: {members: []member{
		{"annotations", nodeNone}, {"audio", nodeNone}, {"content", nodeNone}, {"function_call", nodeNone}, {"reasoning", nodeNone},
		{"reasoning_content", nodeNone}, {"refusal", nodeNone}, {"role", nodeWord}, {"tool_calls", nodeToolCalls},
	}},
	nodeToolCalls:     {array: true, elem: nodeToolCall},
	nodeToolCall:      {members: []member{{"function", nodeCallFunction}, {"id", nodeWord}, {"index", nodeToolCallIndex}, {"type", nodeWord}}},
	nodeToolCallIndex: {keep: keepNumber},
	nodeCallFunction:  {members: []member{{"arguments", nodeNone}, {"name", nodeCallName}}},
	nodeCallName:      {},
	nodeUsage: {members: []member{
		{"cache_creation_input_tokens", nodeNumber}, {"cache_read_input_tokens", nodeCachedTokens}, {"completion_tokens", nodeOutputTokens},
		{"completion_tokens_details", nodeNone}, {"input_tokens", nodeInputTokens}, {"input_tokens_details", nodeUsageDetails},
		{"output_tokens", nodeOutputTokens}, {"output_tokens_details", nodeNone}, {"prompt_tokens", nodeInputTokens},
		{"prompt_tokens_details", nodeUsageDetails}, {"reasoning_tokens", nodeNumber}, {"total_tokens", nodeNumber},
	}},
	nodeUsageDetails:     {members: []member{{"cache_write_tokens", nodeNumber}, {"cached_tokens", nodeCachedTokens}}},
	nodeInputTokens:      {keep: keepNumber},
	nodeOutputTokens:     {keep: keepNumber},
	nodeCachedTokens:     {keep: keepNumber},
	nodeError:            {members: []member{{"code", nodeErrorCode}, {"message", nodeErrorMessage}, {"param", nodeNone}, {"type", nodeErrorType}}},
	nodeErrorType:        {keep: keepWord},
	nodeErrorCode:        {keep: keepNumber | keepWord},
	nodeFlatCode:         {keep: keepNumber},
	nodeIncomplete:       {members: []member{{"reason", nodeIncompleteReason}}},
	nodeIncompleteReason: {keep: keepWord},
	nodeOutput:           {array: true, elem: nodeOutputItem},
	nodeOutputItem: {members: []member{
		{"content", nodeParts}, {"id", nodeWord}, {"role", nodeWord}, {"status", nodeWord}, {"summary", nodeNone}, {"type", nodeOutputItemType},
	}},
	nodeOutputItemType: {keep: keepWord},
	nodeBlocks:         {array: true, elem: nodeBlock},
	nodeBlock:          {members: []member{{"id", nodeWord}, {"input", nodeNone}, {"name", nodeNone}, {"text", nodeNone}, {"type", nodeBlockType}}},
	nodeBlockType:      {keep: keepWord},
	nodeStartBlock:     {members: []member{{"id", nodeWord}, {"input", nodeNone}, {"name", nodeNone}, {"text", nodeNone}, {"type", nodeStartBlockType}}},
	nodeStartBlockType: {keep: keepWord},
	nodeDelta: {members: []member{
		{"partial_json", nodeNone}, {"stop_reason", nodeDeltaStop}, {"stop_sequence", nodeNone}, {"text", nodeNone}, {"thinking", nodeNone}, {"type", nodeWord},
	}},
	nodeDeltaStop: {keep: keepWord},
	nodeResponse: {members: []member{
		{"background", nodeNumber}, {"created_at", nodeNumber}, {"error", nodeError}, {"frequency_penalty", nodeNumber}, {"id", nodeID},
		{"incomplete_details", nodeIncomplete}, {"instructions", nodeNone}, {"max_output_tokens", nodeNumber}, {"metadata", nodeNone},
		{"model", nodeModel}, {"object", nodeWord}, {"output", nodeOutput}, {"parallel_tool_calls", nodeNumber}, {"presence_penalty", nodeNumber},
		{"service_tier", nodeWord}, {"status", nodeStatus}, {"temperature", nodeNumber}, {"tool_choice", nodeTyped}, {"tools", nodeTools},
		{"top_p", nodeNumber}, {"truncation", nodeWord}, {"usage", nodeUsage}, {"user", nodeNone},
	}},
	nodeStartMessage: {members: []member{
		{"content", nodeNone}, {"id", nodeID}, {"model", nodeModel}, {"role", nodeWord}, {"stop_reason", nodeWord},
		{"stop_sequence", nodeNone}, {"type", nodeWord}, {"usage", nodeStartUsage},
	}},
	nodeStartUsage: {members: []member{{"input_tokens", nodeStartInput}, {"output_tokens", nodeNumber}}},
	nodeStartInput: {keep: keepNumber},
	nodeData:       {array: true, elem: nodeDatum},
	nodeDatum:      {members: []member{{"embedding", nodeNone}, {"index", nodeNumber}, {"object", nodeWord}}},
}

// api is a kind of request that runs the model.
type api uint8

const (
	apiNone api = iota
	apiChat
	apiCompletions
	apiResponses
	apiMessages
	apiEmbeddings // also pooling and classify: the same inputs
	apiScore
	apiRerank
)

// apiOf tells the API by the path. Front ends mount the same API under a prefix
// (--root-path), so that what comes before /v1/ does not count.
func apiOf(path string) api {
	for i := len(path) - 4; i > 0; i-- {
		if path[i:i+4] == "/v1/" || path[i:i+4] == "/v2/" {
			path = path[i:]
			break
		}
	}
	switch path {
	case "/v1/chat/completions", "/v1/chat/completions/batch":
		return apiChat
	case "/v1/completions":
		return apiCompletions
	case "/v1/responses":
		return apiResponses
	case "/v1/messages":
		return apiMessages
	case "/v1/embeddings", "/pooling", "/classify", "/v1/classify", "/v1/pooling":
		return apiEmbeddings
	case "/score", "/v1/score":
		return apiScore
	case "/rerank", "/v1/rerank", "/v2/rerank":
		return apiRerank
	}
	return apiNone
}
