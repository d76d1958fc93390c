package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// event is a CloudEvent that is the whole body of a delivery.
type event struct {
	attributes, headers texts
	payload             []byte
}

// essence returns a content type without its parameters.
func essence(contentType string) string {
	essence, _, _ := strings.Cut(contentType, ";")
	return strings.TrimSpace(essence)
}

// isEvent returns whether a content type is that of a whole CloudEvent in JSON.
func isEvent(contentType string) bool {
	return strings.EqualFold(essence(contentType), "application/cloudevents+json")
}

// isJSON returns whether a content type is that of JSON.
func isJSON(contentType string) bool {
	essence := essence(contentType)
	return strings.HasSuffix(essence, "/json") || strings.HasSuffix(essence, "+json")
}

// openEvent opens a CloudEvent that is the whole body.
func openEvent(body []byte) (event, error) {
	found := event{attributes: texts{}, headers: texts{}, payload: []byte{}}
	if !utf8.Valid(body) {
		return found, errors.New("the body is not UTF-8")
	}
	written, err := members(body)
	if err != nil {
		return found, err
	}
	data, encoded := written["data"], written["data_base64"]
	delete(written, "data")
	delete(written, "data_base64")
	for name, value := range written {
		// Null, objects and arrays are no attributes.
		if !bytes.ContainsAny(value[:1], "n{[") {
			found.attributes[clean(name)] = clean(textOf(value))
		}
	}
	if text, ok := found.attributes["headers"]; ok {
		found.headers = freeHeaders(text)
		delete(found.attributes, "headers")
	}
	if !strings.HasPrefix(found.attributes["specversion"], "1.") {
		return found, errors.New("the body is no CloudEvent 1.0")
	}
	if data != nil && encoded != nil {
		return found, errors.New("the event has both data and data_base64")
	}
	if encoded != nil {
		text := textOf(encoded)
		payload, err := base64.StdEncoding.DecodeString(text)
		if err != nil || encoded[0] != '"' || base64.StdEncoding.EncodeToString(payload) != text {
			return found, errors.New("data_base64 is no Base64")
		}
		found.payload = payload
	}
	if data != nil {
		if _, ok := found.attributes["datacontenttype"]; !ok {
			found.attributes["datacontenttype"] = "application/json"
		}
		found.payload = data
		// With another type than JSON, a string stands for its text.
		if !isJSON(found.attributes["datacontenttype"]) {
			found.payload = []byte(textOf(data))
		}
	}
	return found, nil
}

// textOf returns the text of a string in JSON, and anything else as it is written.
func textOf(value json.RawMessage) string {
	text := string(value)
	if value[0] == '"' {
		// It has been read as JSON already.
		_ = json.Unmarshal(value, &text)
	}
	return text
}

// freeHeaders returns the headers in the attribute headers of the relay. That of another producer is
// a header.
func freeHeaders(text string) texts {
	var found map[string]*string
	if json.Unmarshal([]byte(text), &found) != nil || found == nil {
		return texts{"headers": text}
	}
	headers := texts{}
	for name, value := range found {
		if value == nil {
			return texts{"headers": text}
		}
		headers[clean(name)] = clean(*value)
	}
	return headers
}

// members returns the members of a JSON object as they are written: an inbox compares payloads by
// their bytes.
func members(text []byte) (map[string]json.RawMessage, error) {
	decoder, found := json.NewDecoder(bytes.NewReader(text)), map[string]json.RawMessage{}
	if token, err := decoder.Token(); err != nil || token != json.Delim('{') {
		return nil, errors.New("the body is no JSON object")
	}
	for decoder.More() {
		token, err := decoder.Token()
		if err != nil {
			return nil, err
		}
		var value json.RawMessage
		if err := decoder.Decode(&value); err != nil {
			return nil, err
		}
		name := fmt.Sprint(token)
		if _, ok := found[name]; ok {
			return nil, fmt.Errorf("the member %.64q occurs twice", name)
		}
		found[name] = value
	}
	if _, err := decoder.Token(); err != nil {
		return nil, err
	}
	if _, err := decoder.Token(); err != io.EOF {
		return nil, errors.New("the body goes on after its JSON object")
	}
	return found, nil
}
