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
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/jackc/pgx/v5"
)

const attemptsMax = 10

// A handler that hangs keeps its message from other processes for a minute: then its session is ended.
const idle = "set_config('idle_in_transaction_session_timeout', '60s', true)"

var consumer = cmp.Or(os.Getenv("CONSUMER"), "billing-go")

// Handler has the effect of a message in the transaction of its inbox row.
type Handler func(context.Context, pgx.Tx, Message) error

// handle runs a handler, then proves that its transaction is the one that admitted the message. It asks
// on the connection: pgx would refuse a statement in a transaction that has ended, without saying why.
func handle(ctx context.Context, tx pgx.Tx, m Message, handler Handler) error {
	if err := handler(ctx, tx, m); err != nil {
		return err
	}
	_, err := tx.Conn().Exec(ctx, "SELECT inbox_finish($1, $2)", consumer, m.ID)
	return err
}

// Apply has the effect of a message once. Any answer but "again" permits its acknowledgement; an
// error does not, and says that the database failed.
func Apply(ctx context.Context, conn *pgx.Conn, m Message, handler Handler) (string, error) {
	reason, problem := "malformed", m.Problem
	if m.ID != nil {
		err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			admit := "SELECT inbox_admit($1, $2, $3, $4, $5, $6) FROM " + idle
			row := tx.QueryRow(ctx, admit, consumer, m.ID, m.Kind, m.ContentType, m.Payload, m.Source)
			if err := row.Scan(&reason); err != nil || reason != "new" {
				return err
			}
			return handle(ctx, tx, m, handler)
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
			FROM inbox_take_redrive($1, $2), ` + idle
		err := tx.QueryRow(ctx, take, consumer, request).Scan(
			&m.Topic, &m.Payload, &m.ID, &m.Kind, &m.ContentType, &m.Key, &m.Source, &m.Headers)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		} else if err != nil {
			return err
		}
		return handle(ctx, tx, m, handler)
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
		Order, Cents *int64
		Customer     *string
	}
	if err := json.Unmarshal(m.Payload, &order); err != nil {
		return Reject{err}
	} else if order.Order == nil || order.Cents == nil || order.Customer == nil {
		return Reject{errors.New("the payload is no order: a member is missing")}
	}
	var isBlocked bool
	blocked := "SELECT EXISTS (SELECT FROM blocked_customer WHERE name = $1)"
	if err := tx.QueryRow(ctx, blocked, order.Customer).Scan(&isBlocked); err != nil {
		return err
	} else if isBlocked {
		return Reject{fmt.Errorf("customer %s is blocked", *order.Customer)}
	}
	insert := "INSERT INTO invoice (message_id, order_id, customer, cents) VALUES ($1, $2, $3, $4)"
	if _, err := tx.Exec(ctx, insert, m.ID, order.Order, order.Customer, order.Cents); err != nil {
		return err
	}
	enqueue := "SELECT outbox_enqueue_json('invoices', $1, key => $2, kind => 'invoice.issued')"
	_, err := tx.Exec(ctx, enqueue, map[string]any{"order": order.Order}, order.Customer)
	return err
}
