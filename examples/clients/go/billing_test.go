// The client keeps what it promises, on the database of DATABASE_URL.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"
)

var ctx = context.Background()

func connect(t *testing.T) *pgx.Conn {
	t.Helper()
	conn, err := Connect(ctx, os.Getenv("DATABASE_URL"))
	must(t, err)
	must(t, Maintain(ctx, conn))
	t.Cleanup(func() { _ = conn.Close(ctx) })
	return conn
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func equal[T comparable](t *testing.T, found, expected T) {
	t.Helper()
	if found != expected {
		t.Fatalf("found %v, expected %v", found, expected)
	}
}

func query[T any](t *testing.T, conn *pgx.Conn, sql string, values ...any) (found T) {
	t.Helper()
	must(t, conn.QueryRow(ctx, sql, values...).Scan(&found))
	return found
}

func applied(t *testing.T, conn *pgx.Conn, m Message, handler Handler) string {
	t.Helper()
	outcome, err := Apply(ctx, conn, m, handler)
	must(t, err)
	return outcome
}

// order returns a number that no other test has used.
func order() int64 { return time.Now().UnixMicro() }

func placed(number int64, customer string) Message {
	id := DerivedID(uint64(time.Now().UnixMilli()), fmt.Sprint("order-", number)).String()
	payload := fmt.Sprintf(`{"order":%d,"customer":"%s","cents":1250}`, number, customer)
	return Message{Topic: "orders", Kind: "order.placed", ContentType: "application/json", Source: "/orders",
		ID: &id, Key: &customer, Payload: []byte(payload), Headers: map[string]string{}}
}

func invoices(t *testing.T, conn *pgx.Conn, number int64) int {
	t.Helper()
	return query[int](t, conn, "SELECT count(*) FROM invoice WHERE order_id = $1", number)
}

func messages(t *testing.T, conn *pgx.Conn, topic string, number int64) int {
	t.Helper()
	count := "SELECT count(*) FROM outbox_message WHERE topic = $1 AND convert_from(payload, 'UTF8')::jsonb ->> 'order' = $2"
	return query[int](t, conn, count, topic, fmt.Sprint(number))
}

func letter(t *testing.T, conn *pgx.Conn, m Message, column string) string {
	t.Helper()
	find := "SELECT coalesce(to_jsonb(d) ->> $3, '') FROM inbox_dead_letter AS d WHERE consumer = $1 AND message_id = $2"
	return query[string](t, conn, find, consumer, m.ID, column)
}

func TestAnEnqueueCommitsWithItsTransaction(t *testing.T) {
	conn, kept, lost := connect(t), order(), order()+1
	place := func(number int64, end error) error {
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			_, err := PlaceOrder(ctx, tx, number, "ann", 1250)
			return errors.Join(err, end)
		})
	}
	must(t, place(kept, nil))
	if place(lost, errors.New("no stock")) == nil {
		t.Fatal("no error")
	}
	equal(t, messages(t, conn, "orders", kept), 1)
	equal(t, messages(t, conn, "orders", lost), 0)
	equal(t, query[int](t, conn, "SELECT count(*) FROM orders WHERE id = $1", lost), 0)
}

func TestARedeliveryHasOneEffect(t *testing.T) {
	conn, number := connect(t), order()
	message := placed(number, "ann")
	equal(t, applied(t, conn, message, Bill), "new")
	equal(t, applied(t, conn, message, Bill), "duplicate")
	equal(t, invoices(t, conn, number), 1)
	equal(t, messages(t, conn, "invoices", number), 1)
}

// killing returns a handler that has its effect, and then loses its connection.
func killing(t *testing.T, doomed *pgx.Conn) Handler {
	return func(ctx context.Context, tx pgx.Tx, m Message) error {
		must(t, Bill(ctx, tx, m))
		query[bool](t, connect(t), "SELECT pg_terminate_backend($1, 10000)", doomed.PgConn().PID())
		return nil
	}
}

func TestAHandlerThatIsKilledLeavesNothing(t *testing.T) {
	conn, doomed, number := connect(t), connect(t), order()
	message := placed(number, "ann")
	if _, err := Apply(ctx, doomed, message, killing(t, doomed)); err == nil {
		t.Fatal("no error")
	}
	equal(t, invoices(t, conn, number), 0)
	equal(t, applied(t, conn, message, Bill), "new")
	equal(t, invoices(t, conn, number), 1)
}

func TestASwallowedErrorIsAFailure(t *testing.T) {
	conn, message := connect(t), placed(order(), "ann")
	swallow := func(ctx context.Context, tx pgx.Tx, _ Message) error {
		_, _ = tx.Exec(ctx, "SELECT 1 / 0")
		return nil
	}
	equal(t, applied(t, conn, message, swallow), "again")
	equal(t, applied(t, conn, message, Bill), "new")
}

func ask(t *testing.T, conn *pgx.Conn, m Message) {
	t.Helper()
	ask := `INSERT INTO inbox_audit (actor, note, action, dead_letter, consumer)
		VALUES ('ann', 'prices are back', 'redrive', $1, $2)`
	_, err := conn.Exec(ctx, ask, letter(t, conn, m, "id"), consumer)
	must(t, err)
}

// endings are the ways of a handler to end its transaction.
var endings = []func(pgx.Tx) error{
	func(tx pgx.Tx) error { return tx.Rollback(ctx) },
	func(tx pgx.Tx) error { return run(tx, "ROLLBACK") },
	func(tx pgx.Tx) error { return run(tx, "ROLLBACK; BEGIN") },
}

func run(tx pgx.Tx, sql string) error {
	_, err := tx.Conn().PgConn().Exec(ctx, sql).ReadAll()
	return err
}

// ending returns a handler that has its effect, ends its transaction, and returns.
func ending(t *testing.T, end func(pgx.Tx) error) Handler {
	return func(ctx context.Context, tx pgx.Tx, m Message) error {
		must(t, Bill(ctx, tx, m))
		return end(tx)
	}
}

func fails(t *testing.T, conn *pgx.Conn, m Message, text string) {
	t.Helper()
	failed := "SELECT last_error FROM inbox_attempt WHERE consumer = $1 AND message_id = $2"
	if found := query[string](t, conn, failed, consumer, m.ID); !strings.Contains(found, text) {
		t.Fatal(found)
	}
}

func TestATransactionThatAHandlerEndsIsAFailure(t *testing.T) {
	conn := connect(t)
	for _, end := range endings {
		number := order()
		message := placed(number, "ann")
		equal(t, applied(t, conn, message, ending(t, end)), "again")
		fails(t, conn, message, "To undo an effect")
		equal(t, invoices(t, conn, number), 0)
		equal(t, applied(t, conn, message, Bill), "new")
		equal(t, invoices(t, conn, number), 1)
	}
	message := placed(order(), "ann")
	for range attemptsMax - 1 {
		equal(t, applied(t, conn, message, ending(t, endings[0])), "again")
	}
	equal(t, applied(t, conn, message, ending(t, endings[0])), "poison")

	// What it has committed has taken effect, and nothing more of the message will.
	commits := []func(pgx.Tx) error{
		func(tx pgx.Tx) error { return tx.Commit(ctx) },
		func(tx pgx.Tx) error { return run(tx, "COMMIT") },
	}
	for _, commit := range commits {
		number := order()
		message := placed(number, "ann")
		equal(t, applied(t, conn, message, ending(t, commit)), "again")
		fails(t, conn, message, "leaves COMMIT to its caller")
		equal(t, applied(t, conn, message, Bill), "duplicate")
		equal(t, invoices(t, conn, number), 1)
	}
}

func TestARedriveWhoseHandlerEndsItsTransactionFails(t *testing.T) {
	conn, number := connect(t), order()
	message := placed(number, "ann")
	reject := func(context.Context, pgx.Tx, Message) error { return Reject{errors.New("no")} }
	equal(t, applied(t, conn, message, reject), "rejected")
	for _, end := range endings {
		ask(t, conn, message)
		found, err := Redrive(ctx, conn, ending(t, end))
		must(t, err)
		equal(t, found, true)
		outcome := "SELECT outcome LIKE '%To undo an effect%' FROM inbox_audit WHERE dead_letter = $1 ORDER BY seq DESC LIMIT 1"
		equal(t, query[bool](t, conn, outcome, letter(t, conn, message, "id")), true)
		equal(t, letter(t, conn, message, "resolution"), "")
		equal(t, invoices(t, conn, number), 0)
	}
	ask(t, conn, message)
	_, err := Redrive(ctx, conn, Bill)
	must(t, err)
	equal(t, invoices(t, conn, number), 1)
}

func TestAHandlerThatHangsLosesItsSession(t *testing.T) {
	conn, number := connect(t), order()
	message, other, limits := placed(number, "ann"), placed(number+1, "ann"), []string{}
	hang := func(ctx context.Context, tx pgx.Tx, m Message) error {
		var limit string
		must(t, tx.QueryRow(ctx, "SHOW idle_in_transaction_session_timeout").Scan(&limit))
		limits = append(limits, limit)
		must(t, run(tx, "SET LOCAL idle_in_transaction_session_timeout = '1ms'"))
		alive := "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1)"
		for query[bool](t, conn, alive, tx.Conn().PgConn().PID()) {
			time.Sleep(10 * time.Millisecond)
		}
		return Bill(ctx, tx, m)
	}
	reject := func(context.Context, pgx.Tx, Message) error { return Reject{errors.New("no")} }
	equal(t, applied(t, conn, other, reject), "rejected")
	ask(t, conn, other)
	if outcome, err := Apply(ctx, connect(t), message, hang); err == nil {
		t.Fatal(outcome)
	}
	if _, err := Redrive(ctx, connect(t), hang); err == nil {
		t.Fatal("no error")
	}
	equal(t, strings.Join(limits, " "), "1min 1min")
	// It is not the message's failure.
	counted := "SELECT count(*) FROM inbox_attempt WHERE consumer = $1 AND message_id = $2"
	equal(t, query[int](t, conn, counted, consumer, message.ID), 0)
	equal(t, applied(t, conn, message, Bill), "new")
	_, err := Redrive(ctx, conn, Bill)
	must(t, err)
	equal(t, invoices(t, conn, number)+invoices(t, conn, number+1), 2)
}

func TestAHandlerThatAlwaysFailsBecomesADeadLetter(t *testing.T) {
	conn, message := connect(t), placed(order(), "ann")
	fail := func(context.Context, pgx.Tx, Message) error { return errors.New("the printer burns") }
	for range attemptsMax - 1 {
		equal(t, applied(t, conn, message, fail), "again")
	}
	equal(t, applied(t, conn, message, fail), "poison")
	equal(t, applied(t, conn, message, fail), "dead_letter")
	equal(t, letter(t, conn, message, "reason"), "poison")
	equal(t, letter(t, conn, message, "attempts"), fmt.Sprint(attemptsMax))
	equal(t, letter(t, conn, message, "key"), "ann")
	equal(t, letter(t, conn, message, "error"), "the printer burns")
}

func TestARefusedMessageBecomesADeadLetter(t *testing.T) {
	conn, message := connect(t), placed(order(), "ann")
	equal(t, applied(t, conn, message, Bill), "new")
	other := message
	other.Payload = []byte("{}")
	equal(t, applied(t, conn, other, Bill), "key_reused")
	equal(t, letter(t, conn, message, "reason"), "key_reused")
	old := DerivedID(1_000, "old").String()
	other.ID = &old
	equal(t, applied(t, conn, other, Bill), "too_old")
	cancelled := placed(order(), "ann") // A topic may have several kinds.
	cancelled.Kind = "order.cancelled"
	equal(t, applied(t, conn, cancelled, Bill), "rejected")
	chunk := amqp.Delivery{RoutingKey: "orders", MessageId: *message.ID, Body: []byte("part"),
		Headers: amqp.Table{"cloudEvents_chunkindex": "0"}}
	equal(t, applied(t, conn, Read(chunk), Bill), "malformed")
}

func TestWhatAPeerWritesDoesNotStopTheConsumer(t *testing.T) {
	conn, long := connect(t), strings.Builder{}
	// No index of PostgreSQL takes this key, even compressed.
	for at := range 5_000 {
		long.WriteRune(rune(0x4e00 + at*7919%20_000))
	}
	unknown := fmt.Sprint("customer ", order())
	fail := func(context.Context, pgx.Tx, Message) error { return Reject{errors.New("no such\x00\xff" + unknown)} }
	parts := []amqp.Table{{"cloudEvents_time": "yesterday"}, {"cloudEvents_subject": long.String()},
		{"na\x00me": "a\x00b\xff"}}
	for _, headers := range parts {
		bad := amqp.Delivery{RoutingKey: "orders", MessageId: *placed(order(), "ann").ID, Headers: headers}
		equal(t, applied(t, conn, Read(bad), fail), "rejected")
	}
	stored := "SELECT count(*) FROM inbox_dead_letter WHERE consumer = $1 AND error LIKE $2"
	equal(t, query[int](t, conn, stored, consumer, "no such\ufffd\ufffd"+unknown+"%"), len(parts))
	equal(t, applied(t, conn, placed(order(), "ann"), Bill), "new")
}

func TestARedriveThatEndsItsProcessIsGivenUp(t *testing.T) {
	conn, number := connect(t), order()
	message := placed(number, fmt.Sprint("customer-", number))
	reject := func(context.Context, pgx.Tx, Message) error { return Reject{errors.New("no")} }
	equal(t, applied(t, conn, message, reject), "rejected")
	ask(t, conn, message)
	for range 5 {
		doomed := connect(t)
		if _, err := Redrive(ctx, doomed, killing(t, doomed)); err == nil {
			t.Fatal("no error")
		}
	}
	// The next process goes on, and an operator may ask again.
	found, err := Redrive(ctx, conn, Bill)
	must(t, err)
	equal(t, found, false)
	outcome := "SELECT outcome LIKE 'five processes ended%' FROM inbox_audit WHERE dead_letter = $1"
	equal(t, query[bool](t, conn, outcome, letter(t, conn, message, "id")), true)
	equal(t, letter(t, conn, message, "resolution"), "")
	ask(t, conn, message)
	found, err = Redrive(ctx, conn, Bill)
	must(t, err)
	equal(t, found, true)
	equal(t, letter(t, conn, message, "resolution"), "applied")
}

func TestARedriveTakesEffectOnce(t *testing.T) {
	conn, number := connect(t), order()
	message := placed(number, fmt.Sprint("customer-", number))
	redrive := func() bool {
		found, err := Redrive(ctx, conn, Bill)
		must(t, err)
		return found
	}
	ask := func() { ask(t, conn, message) }
	_, err := conn.Exec(ctx, "INSERT INTO blocked_customer VALUES ($1)", message.Key)
	must(t, err)
	equal(t, applied(t, conn, message, Bill), "rejected")
	ask()
	equal(t, redrive(), true)
	equal(t, letter(t, conn, message, "resolution"), "")
	_, err = conn.Exec(ctx, "DELETE FROM blocked_customer WHERE name = $1", message.Key)
	must(t, err)
	ask()
	equal(t, redrive(), true)
	equal(t, redrive(), false)
	equal(t, letter(t, conn, message, "resolution"), "applied")
	equal(t, applied(t, conn, message, Bill), "duplicate")
	equal(t, invoices(t, conn, number), 1)
	// Nothing is left to do for this one, and the transaction is committed.
	old := DerivedID(1_000, "old").String()
	message.ID = &old
	equal(t, applied(t, conn, message, Bill), "too_old")
	ask()
	equal(t, redrive(), true)
	outcome := "SELECT outcome FROM inbox_audit WHERE dead_letter = $1 ORDER BY seq DESC LIMIT 1"
	equal(t, query[string](t, conn, outcome, letter(t, conn, message, "id")), "it is refused: too_old")
	equal(t, redrive(), false)
}

type vectors struct {
	MessageIDs struct {
		Accepted []struct{ ID, Canonical string }
		Refused  []struct{ ID string }
		NotIDs   []struct{ ID, Why string } `json:"not_ids"`
	} `json:"message_ids"`
	DerivedIDs []struct {
		Milliseconds uint64
		Parts        []string
		ID           string
	} `json:"derived_ids"`
	Fingerprints []struct {
		Kind, SHA256 string
		ContentType  string `json:"content_type"`
		Payload      []byte `json:"payload_base64"`
	}
	Wires []struct {
		Message struct {
			ID, Topic, Kind, Source, Time string
			Key                           *string
			Traceparent, Tracestate       string
			Headers                       map[string]string
			Chunk                         *struct{}
			Payload                       []byte `json:"payload_base64"`
		}
		RabbitMQ struct {
			RoutingKey  string `json:"routing_key"`
			MessageID   string `json:"message_id"`
			ContentType string `json:"content_type"`
			Headers     map[string]string
		}
	}
	Deliveries []struct {
		Why      string
		RabbitMQ struct {
			RoutingKey  string `json:"routing_key"`
			MessageID   string `json:"message_id"`
			ContentType string `json:"content_type"`
			Type, Body  string
			Headers     map[string]string
		}
		Message *struct {
			ID, Kind, Source string
			ContentType      string `json:"content_type"`
			Key              *string
			Headers          map[string]string
			Payload          []byte `json:"payload_base64"`
		}
	}
	Unreadable []struct {
		Why      string
		RabbitMQ struct {
			RoutingKey string `json:"routing_key"`
			MessageID  string `json:"message_id"`
			Headers    map[string]string
		}
		Headers map[string]string `json:"dead_letter_headers"`
	}
	NoOrders []struct{ Why, Payload string } `json:"no_orders"`
}

func table(headers map[string]string) amqp.Table {
	found := amqp.Table{}
	for name, value := range headers {
		found[name] = value
	}
	return found
}

// spelled returns what is read of a delivery with this id in a header, and in the property.
func spelled(id string) []Message {
	return []Message{
		Read(amqp.Delivery{RoutingKey: "orders", Headers: amqp.Table{"cloudEvents_id": id}}),
		Read(amqp.Delivery{RoutingKey: "orders", MessageId: id}),
	}
}

func TestTheSharedVectorsHold(t *testing.T) {
	conn := connect(t)
	var file vectors
	text, err := os.ReadFile("../vectors.json")
	must(t, err)
	must(t, json.Unmarshal(text, &file))
	for _, it := range file.DerivedIDs {
		equal(t, DerivedID(it.Milliseconds, it.Parts...).String(), it.ID)
	}
	for _, it := range file.Fingerprints {
		print := "SELECT encode(inbox_fingerprint($1, $2, $3), 'hex')"
		equal(t, query[string](t, conn, print, it.Kind, it.ContentType, it.Payload), it.SHA256)
	}
	for _, it := range file.MessageIDs.Accepted {
		for _, found := range spelled(it.ID) {
			if found.ID == nil || *found.ID != it.Canonical {
				t.Fatal(it.ID, found.Problem)
			}
		}
	}
	for _, it := range file.MessageIDs.NotIDs {
		for _, found := range spelled(it.ID) {
			if found.ID != nil {
				t.Fatal(it.Why, *found.ID)
			}
		}
	}
	for _, it := range file.MessageIDs.Refused {
		message := placed(order(), "ann")
		message.ID = &it.ID
		equal(t, applied(t, conn, message, Bill), "malformed")
	}
	if len(file.Wires) < 3 || len(file.DerivedIDs) < 5 || len(file.Unreadable) < 6 {
		t.Fatal("the file lacks vectors")
	}
	if len(file.MessageIDs.Accepted) < 8 || len(file.MessageIDs.NotIDs) < 16 || len(file.Deliveries) < 30 {
		t.Fatal("the file lacks vectors")
	}
	for _, it := range file.Wires {
		sent, found := it.Message, Read(amqp.Delivery{RoutingKey: it.RabbitMQ.RoutingKey,
			Headers: table(it.RabbitMQ.Headers), MessageId: it.RabbitMQ.MessageID, ContentType: it.RabbitMQ.ContentType, Body: it.Message.Payload})
		if sent.Chunk != nil {
			equal(t, strings.Contains(found.Problem, "chunk"), true)
			continue
		}
		equal(t, uuid.MustParse(*found.ID).String(), sent.ID)
		equal(t, found.Kind, sent.Kind)
		equal(t, found.Topic, sent.Topic)
		equal(t, found.Source, sent.Source)
		equal(t, *found.MadeAt, sent.Time)
		if found.Key != nil || sent.Key != nil {
			equal(t, *found.Key, *sent.Key)
		}
		expected := maps.Clone(sent.Headers)
		for name, value := range map[string]string{"traceparent": sent.Traceparent, "tracestate": sent.Tracestate} {
			if value != "" {
				expected[name] = value
			}
		}
		equal(t, maps.Equal(found.Headers, expected), true)
	}
	for _, it := range file.Deliveries {
		form, sent := it.RabbitMQ, it.Message
		found := Read(amqp.Delivery{RoutingKey: form.RoutingKey, MessageId: form.MessageID, Type: form.Type,
			ContentType: form.ContentType, Headers: table(form.Headers), Body: []byte(form.Body)})
		if sent == nil {
			if found.ID != nil || found.Problem == "" || string(found.Payload) != form.Body {
				t.Fatal(it.Why, found)
			}
			continue
		}
		if found.ID == nil || *found.ID != sent.ID || !maps.Equal(found.Headers, sent.Headers) {
			t.Fatal(it.Why, found)
		}
		equal(t, found.Kind+" "+found.Source+" "+found.ContentType, sent.Kind+" "+sent.Source+" "+sent.ContentType)
		equal(t, string(found.Payload), string(sent.Payload))
		if found.Key != nil || sent.Key != nil {
			equal(t, *found.Key, *sent.Key)
		}
	}
	if len(file.NoOrders) < 10 {
		t.Fatal("the file lacks vectors")
	}
	for _, it := range file.NoOrders {
		message := placed(order(), "ann")
		message.Payload = []byte(it.Payload)
		if found := applied(t, conn, message, Bill); found != "rejected" {
			t.Fatal(it.Why, found)
		}
	}
	payload := fmt.Append(nil, order())
	for _, it := range file.Unreadable {
		found := Read(amqp.Delivery{RoutingKey: it.RabbitMQ.RoutingKey, MessageId: it.RabbitMQ.MessageID,
			Headers: table(it.RabbitMQ.Headers), Body: payload})
		if found.ID != nil || !maps.Equal(found.Headers, it.Headers) {
			t.Fatal(it.Why, found.Headers)
		}
		for range 2 {
			equal(t, applied(t, conn, found, Bill), "malformed")
		}
	}
	// Each has a dead letter of its own.
	count := "SELECT count(*) FROM inbox_dead_letter WHERE consumer = $1 AND payload = $2"
	equal(t, query[int](t, conn, count, consumer, payload), len(file.Unreadable))
}
