// Bills orders: a producer and a consumer in Go, with pgx and RabbitMQ.
//
//	DATABASE_URL=postgres://… RABBITMQ_URL=amqp://… go run . [place ORDER CUSTOMER CENTS]
//
// It ends at the first error of database or broker, and a supervisor starts it again: what was not
// acknowledged comes again, and the inbox knows what took effect.
package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"
)

const attemptsMax = 10

var consumer = cmp.Or(os.Getenv("CONSUMER"), "billing-go")

// Reject is a message that no further attempt helps.
type Reject struct{ error }

// Message is a message as it arrived. Without an id it is malformed, and Problem says why.
type Message struct {
	Topic, Kind, ContentType, Source, Problem string
	ID, Key, MadeAt                           *string
	Payload                                   []byte
	Headers                                   map[string]string
}

// Handler has the effect of a message in the transaction of its inbox row.
type Handler func(context.Context, pgx.Tx, Message) error

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
	events, headers := map[string]string{}, map[string]string{}
	for name, value := range delivery.Headers {
		if event, ok := strings.CutPrefix(name, "cloudEvents_"); ok {
			events[event] = clean(fmt.Sprint(value))
		} else {
			headers[clean(name)] = clean(fmt.Sprint(value))
		}
	}
	optional := func(name string) *string {
		if value, ok := events[name]; ok {
			return &value
		}
		return nil
	}
	message := Message{
		Topic: clean(delivery.RoutingKey), Payload: append([]byte{}, delivery.Body...), Headers: headers,
		Kind:        cmp.Or(events["type"], clean(delivery.RoutingKey)),
		ContentType: cmp.Or(clean(delivery.ContentType), "application/octet-stream"),
		Source:      cmp.Or(events["source"], "/unknown"),
		Key:         optional("subject"), MadeAt: optional("time"),
	}
	id, err := uuid.Parse(cmp.Or(events["id"], delivery.MessageId))
	if _, ok := events["chunkindex"]; ok {
		err = errors.New("a chunk of a larger message")
	}
	if text := id.String(); err == nil {
		message.ID = &text
	} else {
		message.Problem, headers["amqp.message_id"] = clean(err.Error()), clean(delivery.MessageId)
	}
	return message
}

// Apply has the effect of a message once. Any answer but "again" permits its acknowledgement; an
// error does not, and says that the database failed.
func Apply(ctx context.Context, conn *pgx.Conn, m Message, handler Handler) (string, error) {
	reason, problem := "malformed", m.Problem
	if m.ID != nil {
		// COMMIT fails if the handler swallowed an error of the database.
		err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			admit := "SELECT inbox_admit($1, $2, $3, $4, $5, $6)"
			row := tx.QueryRow(ctx, admit, consumer, m.ID, m.Kind, m.ContentType, m.Payload, m.Source)
			if err := row.Scan(&reason); err != nil || reason != "new" {
				return err
			}
			return handler(ctx, tx, m)
		})
		switch {
		case err == nil && slices.Contains([]string{"new", "duplicate", "dead_letter"}, reason):
			return reason, nil
		case err == nil:
			problem = "the inbox refused it: " + reason
		case conn.IsClosed(): // Not the message's fault.
			return "", err
		case errors.As(err, new(Reject)):
			reason, problem = "rejected", clean(err.Error())
		default:
			reason, problem = "poison", clean(err.Error())
			attempts := 0
			count := "SELECT inbox_count_failure($1, $2, $3)"
			err := conn.QueryRow(ctx, count, consumer, m.ID, problem).Scan(&attempts)
			if err != nil || attempts < attemptsMax {
				return "again", err
			}
		}
	}
	store := "SELECT inbox_store_dead_letter($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)"
	_, err := conn.Exec(ctx, store, consumer, m.ID, m.Topic, m.Kind, m.ContentType, m.Payload, reason, problem,
		m.Key, m.Headers, m.Source, m.MadeAt)
	return reason, err
}

// Redrive carries out a redrive that an operator asked for (`relay dead requeue`), if there is one.
func Redrive(ctx context.Context, conn *pgx.Conn, handler Handler) (bool, error) {
	var request *int64
	err := conn.QueryRow(ctx, "SELECT inbox_begin_redrive($1)", consumer).Scan(&request)
	if err != nil || request == nil {
		return false, err
	}
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		var m Message
		take := `SELECT topic, payload, message_id::text, kind, content_type, key, source, headers
			FROM inbox_take_redrive($1, $2)`
		err := tx.QueryRow(ctx, take, consumer, request).Scan(
			&m.Topic, &m.Payload, &m.ID, &m.Kind, &m.ContentType, &m.Key, &m.Source, &m.Headers)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		} else if err != nil {
			return err
		}
		return handler(ctx, tx, m)
	})
	if err != nil && !conn.IsClosed() {
		_, err = conn.Exec(ctx, "SELECT inbox_fail_redrive($1, $2, $3)", consumer, request, clean(err.Error()))
	}
	return true, err
}

// PlaceOrder stores an order and enqueues its event, in the transaction of the caller.
func PlaceOrder(ctx context.Context, tx pgx.Tx, order int64, customer string, cents int64) (id string, err error) {
	if _, err = tx.Exec(ctx, "INSERT INTO orders VALUES ($1, $2, $3)", order, customer, cents); err != nil {
		return
	}
	placed := map[string]any{"order": order, "customer": customer, "cents": cents}
	enqueue := "SELECT outbox_enqueue_json('orders', $1, key => $2, kind => 'order.placed')::text"
	return id, tx.QueryRow(ctx, enqueue, placed, customer).Scan(&id)
}

// Bill is the handler: an invoice and its event, in the transaction of the inbox row.
func Bill(ctx context.Context, tx pgx.Tx, m Message) error {
	if m.Kind != "order.placed" {
		return Reject{fmt.Errorf("no handler for %s", m.Kind)}
	}
	var order struct {
		Order, Cents int64
		Customer     string
	}
	if err := json.Unmarshal(m.Payload, &order); err != nil {
		return Reject{err}
	}
	var isBlocked bool
	blocked := "SELECT EXISTS (SELECT FROM blocked_customer WHERE name = $1)"
	if err := tx.QueryRow(ctx, blocked, order.Customer).Scan(&isBlocked); err != nil {
		return err
	} else if isBlocked {
		return Reject{fmt.Errorf("customer %s is blocked", order.Customer)}
	}
	insert := "INSERT INTO invoice (message_id, order_id, customer, cents) VALUES ($1, $2, $3, $4)"
	if _, err := tx.Exec(ctx, insert, m.ID, order.Order, order.Customer, order.Cents); err != nil {
		return err
	}
	enqueue := "SELECT outbox_enqueue_json('invoices', $1, key => $2, kind => 'invoice.issued')"
	_, err := tx.Exec(ctx, enqueue, map[string]any{"order": order.Order}, order.Customer)
	return err
}
