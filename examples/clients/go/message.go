package main

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
)

// Reject is a message that no further attempt helps.
type Reject struct{ error }

// Message is a message as it arrived. Without an id it is malformed, and Problem says why.
type Message struct {
	Topic, Kind, ContentType, Source, Problem string
	ID, Key, MadeAt                           *string
	Payload                                   []byte
	Headers                                   map[string]string
}

// texts are attributes or headers by their names.
type texts map[string]string

// optional returns a text, unless it is missing or empty.
func (t texts) optional(name string) *string {
	if text := t[name]; text != "" {
		return &text
	}
	return nil
}

// Each attribute in chunk marks a part of a message. Every attribute in neither list is a header.
var (
	chunk      = []string{"chunkindex", "chunkcount", "chunkbytes", "chunkfingerprint"}
	attributes = []string{"specversion", "id", "source", "type", "time", "subject", "datacontenttype"}
)

// DerivedID returns the id of a business fact: the same time and parts always give the same one.
func DerivedID(milliseconds uint64, parts ...string) uuid.UUID {
	hash := sha256.New()
	for _, part := range parts {
		hash.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
		hash.Write([]byte(part))
	}
	id := uuid.UUID(append(binary.BigEndian.AppendUint64(nil, milliseconds)[2:], hash.Sum(nil)[:10]...))
	id[6] = id[6]&0x0f | 0x70
	id[8] = id[8]&0x3f | 0x80
	return id
}

// clean replaces what PostgreSQL does not store in a text: NUL, and bytes that are not UTF-8.
func clean(text string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(text, "\ufffd"), "\x00", "\ufffd")
}

// readID reads an id in every spelling that the library reads, and in no other.
func readID(text string) (*string, error) {
	id, err := uuid.Parse(text)
	// Parse takes any two characters for braces.
	if err != nil || len(text) == 38 && (text[0] != '{' || text[37] != '}') {
		return nil, fmt.Errorf("%.64q is not a UUID", text)
	}
	canonical := id.String()
	return &canonical, nil
}

// Read reads a CloudEvent from the properties of a delivery, or from a body that is the whole event.
func Read(delivery amqp.Delivery) Message {
	events, headers, arrived := texts{}, texts{}, texts{}
	for name, value := range delivery.Headers {
		name, text := clean(name), clean(fmt.Sprint(value))
		arrived[name] = text
		if attribute, ok := strings.CutPrefix(name, "cloudEvents_"); ok {
			events[attribute] = text
		} else {
			headers[name] = text
		}
	}
	if delivery.MessageId != "" {
		arrived["amqp.message_id"] = clean(delivery.MessageId)
	}
	message := Message{
		Topic: clean(delivery.RoutingKey), Payload: append([]byte{}, delivery.Body...),
		ContentType: cmp.Or(clean(delivery.ContentType), "application/octet-stream"), Headers: headers,
	}
	malformed := message
	err := message.fill(delivery, events)
	if err != nil {
		message = malformed
		// What is not understood distinguishes malformed deliveries.
		message.Headers, message.Problem = arrived, clean(err.Error())
	}
	message.Kind = cmp.Or(events["type"], clean(delivery.Type), message.Topic)
	message.Source = cmp.Or(events["source"], "/unknown")
	message.Key, message.MadeAt = events.optional("subject"), events.optional("time")
	return message
}

// fill reads the attributes, those of a delivery and those of an event in its body, which it adds to
// events. It sets the id, the headers and the content.
func (m *Message) fill(delivery amqp.Delivery, events texts) error {
	id, hasID := events["id"]
	if isEvent(m.ContentType) && !hasID {
		event, err := openEvent(delivery.Body)
		if err != nil {
			return err
		}
		maps.Copy(events, event.attributes)
		maps.Copy(event.headers, m.Headers)
		m.Headers, m.Payload, m.ContentType = event.headers, event.payload, "application/octet-stream"
		id, hasID = events["id"]
	}
	for name, text := range events {
		_, isKnown := m.Headers[name]
		switch {
		case slices.Contains(chunk, name):
			return errors.New("a chunk of a larger message")
		case text == "" && (name == "type" || name == "source"):
			return errors.New("its type or its source is empty")
		case !slices.Contains(attributes, name) && !isKnown:
			m.Headers[name] = text
		}
	}
	// An attribute that is there counts, although it is empty.
	if !hasID {
		id = clean(delivery.MessageId)
	}
	m.ContentType = cmp.Or(events["datacontenttype"], m.ContentType)
	canonical, err := readID(id)
	m.ID = canonical
	return err
}
