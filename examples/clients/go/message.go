package main

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
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

// Read reads a CloudEvent from the properties of a delivery.
func Read(delivery amqp.Delivery) Message {
	events, free, arrived := map[string]string{}, map[string]string{}, map[string]string{}
	for name, value := range delivery.Headers {
		text := clean(fmt.Sprint(value))
		arrived[clean(name)] = text
		if event, ok := strings.CutPrefix(name, "cloudEvents_"); ok {
			events[event] = text
		} else {
			free[clean(name)] = text
		}
	}
	if delivery.MessageId != "" {
		arrived["amqp.message_id"] = clean(delivery.MessageId)
	}
	optional := func(name string) *string {
		if value, ok := events[name]; ok {
			return &value
		}
		return nil
	}
	message := Message{
		Topic: clean(delivery.RoutingKey), Payload: append([]byte{}, delivery.Body...), Headers: free,
		Kind:        cmp.Or(events["type"], clean(delivery.RoutingKey)),
		ContentType: cmp.Or(clean(delivery.ContentType), "application/octet-stream"),
		Source:      cmp.Or(events["source"], "/unknown"),
		Key:         optional("subject"), MadeAt: optional("time"),
	}
	id, err := uuid.Parse(cmp.Or(events["id"], delivery.MessageId))
	for _, name := range []string{"chunkindex", "chunkcount", "chunkbytes", "chunkfingerprint"} {
		if _, ok := events[name]; ok {
			err = errors.New("a chunk of a larger message")
		}
	}
	if text := id.String(); err == nil {
		message.ID = &text
	} else {
		// What is not understood distinguishes malformed deliveries.
		message.Problem, message.Headers = clean(err.Error()), arrived
	}
	return message
}
