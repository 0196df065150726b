package httptap

// node is a place in a JSON document that means something to us. One grammar
// serves requests and responses of all APIs: the parser reads fields by it, and
// the redactor keeps nothing that it does not name.
type node uint8

const (
	nodeNone node = iota
	nodeRoot
	nodeKeep // a scalar of no interest to the parser, safe to share

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

// rule says what a node holds.
type rule struct {
	array   bool     // an array of elem; else an object of members
	elem    node     //
	members []member // sorted by key
	keep    bool     // its scalar may be shared
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
		{"add_generation_prompt", nodeKeep},
		{"background", nodeKeep},
		{"best_of", nodeKeep},
		{"choices", nodeChoices},
		{"code", nodeFlatCode},
		{"content", nodeBlocks},
		{"content_block", nodeStartBlock},
		{"content_index", nodeKeep},
		{"created", nodeKeep},
		{"created_at", nodeKeep},
		{"data", nodeData},
		{"data_1", nodeText1},
		{"data_2", nodeDocuments},
		{"delta", nodeDelta},
		{"detail", nodeNone},
		{"dimensions", nodeKeep},
		{"documents", nodeDocuments},
		{"echo", nodeKeep},
		{"encoding_format", nodeKeep},
		{"error", nodeError},
		{"frequency_penalty", nodeKeep},
		{"id", nodeID},
		{"ignore_eos", nodeKeep},
		{"incomplete_details", nodeIncomplete},
		{"index", nodeKeep},
		{"input", nodeInput},
		{"instructions", nodeNone},
		{"item", nodeTyped},
		{"item_id", nodeKeep},
		{"items", nodeDocuments},
		{"logprobs", nodeKeep},
		{"max_completion_tokens", nodeMaxCompletionTokens},
		{"max_output_tokens", nodeMaxOutputTokens},
		{"max_tokens", nodeMaxTokens},
		{"max_tool_calls", nodeKeep},
		{"message", nodeStartMessage},
		{"messages", nodeMessages},
		{"metadata", nodeNone},
		{"min_p", nodeKeep},
		{"min_tokens", nodeKeep},
		{"model", nodeModel},
		{"n", nodeN},
		{"object", nodeObject},
		{"output", nodeOutput},
		{"output_index", nodeKeep},
		{"parallel_tool_calls", nodeKeep},
		{"part", nodeTyped},
		{"presence_penalty", nodeKeep},
		{"priority", nodeKeep},
		{"prompt", nodePrompt},
		{"prompt_token_ids", nodeNone},
		{"queries", nodeText1},
		{"query", nodeText1},
		{"reasoning_effort", nodeKeep},
		{"repetition_penalty", nodeKeep},
		{"response", nodeResponse},
		{"response_format", nodeTyped},
		{"results", nodeData},
		{"return_token_ids", nodeKeep},
		{"role", nodeKeep},
		{"seed", nodeKeep},
		{"sequence_number", nodeKeep},
		{"service_tier", nodeKeep},
		{"skip_special_tokens", nodeKeep},
		{"status", nodeStatus},
		{"stop", nodeNone},
		{"stop_reason", nodeStopReason},
		{"store", nodeKeep},
		{"stream", nodeStream},
		{"stream_options", nodeStreamOptions},
		{"system", nodeNone},
		{"system_fingerprint", nodeKeep},
		{"temperature", nodeTemperature},
		{"text", nodeNone},
		{"text_1", nodeText1},
		{"text_2", nodeDocuments},
		{"token_ids", nodeNone},
		{"tokens", nodeNone},
		{"tool_choice", nodeTyped},
		{"tools", nodeTools},
		{"top_k", nodeTopK},
		{"top_logprobs", nodeKeep},
		{"top_n", nodeKeep},
		{"top_p", nodeTopP},
		{"truncation", nodeKeep},
		{"type", nodeType},
		{"usage", nodeUsage},
		{"user", nodeUser},
	}},
	nodeKeep: {keep: true},

	nodeModel:               {keep: true},
	nodeN:                   {keep: true},
	nodeTemperature:         {keep: true},
	nodeTopP:                {keep: true},
	nodeTopK:                {keep: true},
	nodeMaxTokens:           {keep: true},
	nodeMaxCompletionTokens: {keep: true},
	nodeMaxOutputTokens:     {keep: true},
	nodeStream:              {keep: true},
	nodeStreamOptions:       {members: []member{{"continuous_usage_stats", nodeKeep}, {"include_usage", nodeKeep}}},
	nodeTyped:               {keep: true, members: []member{{"id", nodeKeep}, {"role", nodeKeep}, {"status", nodeKeep}, {"type", nodeKeep}}},
	nodeTools:               {array: true, elem: nodeTool},
	nodeTool:                {members: []member{{"function", nodeNone}, {"type", nodeKeep}}},
	nodeMessages:            {array: true, elem: nodeMessage},
	nodeMessage: {members: []member{
		{"content", nodeParts}, {"id", nodeKeep}, {"name", nodeNone}, {"reasoning", nodeNone}, {"reasoning_content", nodeNone},
		{"role", nodeKeep}, {"status", nodeKeep}, {"tool_call_id", nodeNone}, {"tool_calls", nodeParts}, {"type", nodeKeep},
	}},
	nodeParts:      {array: true, elem: nodePart},
	nodePart:       {members: []member{{"function", nodeNone}, {"image_url", nodeNone}, {"input_audio", nodeNone}, {"text", nodeNone}, {"type", nodeKeep}}},
	nodePrompt:     {array: true, elem: nodePromptItem},
	nodePromptItem: {array: true},
	nodeInput:      {array: true, elem: nodeInputItem},
	nodeInputItem: {members: []member{
		{"content", nodeParts}, {"id", nodeKeep}, {"role", nodeKeep}, {"status", nodeKeep}, {"type", nodeKeep},
	}},
	nodeText1:     {array: true, elem: nodeText1Item},
	nodeDocuments: {array: true, elem: nodeDocument},

	nodeID:         {keep: true},
	nodeObject:     {keep: true},
	nodeType:       {keep: true},
	nodeStatus:     {keep: true},
	nodeStopReason: {keep: true},
	nodeChoices:    {array: true, elem: nodeChoice},
	nodeChoice: {members: []member{
		{"delta", nodeChoiceMessage}, {"finish_reason", nodeFinishReason}, {"index", nodeChoiceIndex}, {"logprobs", nodeNone},
		{"message", nodeChoiceMessage}, {"prompt_logprobs", nodeNone}, {"prompt_token_ids", nodeNone}, {"routed_experts", nodeNone},
		{"stop_reason", nodeNone}, {"text", nodeNone}, {"token_ids", nodeNone},
	}},
	nodeChoiceIndex:  {keep: true},
	nodeFinishReason: {keep: true},
	nodeChoiceMessage: {members: []member{
		{"annotations", nodeNone}, {"audio", nodeNone}, {"content", nodeNone}, {"function_call", nodeNone}, {"reasoning", nodeNone},
		{"reasoning_content", nodeNone}, {"refusal", nodeNone}, {"role", nodeKeep}, {"tool_calls", nodeToolCalls},
	}},
	nodeToolCalls:     {array: true, elem: nodeToolCall},
	nodeToolCall:      {members: []member{{"function", nodeNone}, {"id", nodeKeep}, {"index", nodeToolCallIndex}, {"type", nodeKeep}}},
	nodeToolCallIndex: {keep: true},
	nodeUsage: {members: []member{
		{"cache_creation_input_tokens", nodeKeep}, {"cache_read_input_tokens", nodeCachedTokens}, {"completion_tokens", nodeOutputTokens},
		{"completion_tokens_details", nodeNone}, {"input_tokens", nodeInputTokens}, {"input_tokens_details", nodeUsageDetails},
		{"output_tokens", nodeOutputTokens}, {"output_tokens_details", nodeNone}, {"prompt_tokens", nodeInputTokens},
		{"prompt_tokens_details", nodeUsageDetails}, {"total_tokens", nodeKeep},
	}},
	nodeUsageDetails:     {members: []member{{"cache_write_tokens", nodeKeep}, {"cached_tokens", nodeCachedTokens}}},
	nodeInputTokens:      {keep: true},
	nodeOutputTokens:     {keep: true},
	nodeCachedTokens:     {keep: true},
	nodeError:            {members: []member{{"code", nodeErrorCode}, {"message", nodeErrorMessage}, {"param", nodeNone}, {"type", nodeErrorType}}},
	nodeErrorType:        {keep: true},
	nodeErrorCode:        {keep: true},
	nodeFlatCode:         {keep: true},
	nodeIncomplete:       {members: []member{{"reason", nodeIncompleteReason}}},
	nodeIncompleteReason: {keep: true},
	nodeOutput:           {array: true, elem: nodeOutputItem},
	nodeOutputItem: {members: []member{
		{"content", nodeParts}, {"id", nodeKeep}, {"role", nodeKeep}, {"status", nodeKeep}, {"summary", nodeNone}, {"type", nodeOutputItemType},
	}},
	nodeOutputItemType: {keep: true},
	nodeBlocks:         {array: true, elem: nodeBlock},
	nodeBlock:          {members: []member{{"id", nodeKeep}, {"input", nodeNone}, {"name", nodeNone}, {"text", nodeNone}, {"type", nodeBlockType}}},
	nodeBlockType:      {keep: true},
	nodeStartBlock:     {members: []member{{"id", nodeKeep}, {"input", nodeNone}, {"name", nodeNone}, {"text", nodeNone}, {"type", nodeStartBlockType}}},
	nodeStartBlockType: {keep: true},
	nodeDelta: {members: []member{
		{"partial_json", nodeNone}, {"stop_reason", nodeDeltaStop}, {"stop_sequence", nodeNone}, {"text", nodeNone}, {"thinking", nodeNone}, {"type", nodeKeep},
	}},
	nodeDeltaStop: {keep: true},
	nodeResponse: {members: []member{
		{"background", nodeKeep}, {"created_at", nodeKeep}, {"error", nodeError}, {"frequency_penalty", nodeKeep}, {"id", nodeID},
		{"incomplete_details", nodeIncomplete}, {"instructions", nodeNone}, {"max_output_tokens", nodeKeep}, {"metadata", nodeNone},
		{"model", nodeModel}, {"object", nodeKeep}, {"output", nodeOutput}, {"parallel_tool_calls", nodeKeep}, {"presence_penalty", nodeKeep},
		{"service_tier", nodeKeep}, {"status", nodeStatus}, {"temperature", nodeKeep}, {"tool_choice", nodeTyped}, {"tools", nodeTools},
		{"top_p", nodeKeep}, {"truncation", nodeKeep}, {"usage", nodeUsage}, {"user", nodeNone},
	}},
	nodeStartMessage: {members: []member{
		{"content", nodeNone}, {"id", nodeID}, {"model", nodeModel}, {"role", nodeKeep}, {"stop_reason", nodeKeep},
		{"stop_sequence", nodeNone}, {"type", nodeKeep}, {"usage", nodeStartUsage},
	}},
	nodeStartUsage: {members: []member{{"input_tokens", nodeStartInput}, {"output_tokens", nodeKeep}}},
	nodeStartInput: {keep: true},
	nodeData:       {array: true, elem: nodeDatum},
	nodeDatum:      {members: []member{{"embedding", nodeNone}, {"index", nodeKeep}, {"object", nodeKeep}}},
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
