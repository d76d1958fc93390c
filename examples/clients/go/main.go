package main

import (
	"context"
	"fmt"
	"log"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"
)

// Maintain makes and forgets the days of the inbox. What it cannot do waits for the next hour.
func Maintain(ctx context.Context, conn *pgx.Conn) error {
	rows, err := conn.Query(ctx, "SELECT inbox_maintain($1)", time.Now().UTC())
	if err != nil {
		return err
	}
	problems, err := pgx.CollectRows(rows, pgx.RowTo[string])
	for _, problem := range problems {
		log.Print("inbox: ", problem)
	}
	return err
}

// Connect returns a connection that notices within minutes that its server is gone.
func Connect(ctx context.Context, url string) (*pgx.Conn, error) {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	alive := net.KeepAliveConfig{Enable: true, Idle: 30 * time.Second, Interval: 10 * time.Second, Count: 3}
	config.DialFunc = (&net.Dialer{Timeout: 10 * time.Second, KeepAliveConfig: alive}).DialContext
	return pgx.ConnectConfig(ctx, config)
}

// One active consumer keeps the order of keys. RabbitMQ 4 drops a message of a quorum queue after
// 20 deliveries, and each start of this process can be one: the limit is out of reach.
var queue = amqp.Table{
	"x-queue-type":             "quorum",
	"x-delivery-limit":         int32(1_000_000),
	"x-single-active-consumer": true,
}

func consume(ctx context.Context, conn *pgx.Conn, handler Handler) error {
	// Before the first delivery: on a database that refuses work, the process ends without one.
	if err := Maintain(ctx, conn); err != nil {
		return err
	}
	if _, err := Redrive(ctx, conn, handler); err != nil {
		return err
	}
	broker, err := amqp.Dial(os.Getenv("RABBITMQ_URL"))
	if err != nil {
		return err
	}
	channel, err := broker.Channel()
	if err != nil {
		return err
	}
	// It is bound to the relay's exchange.
	if _, err := channel.QueueDeclare(consumer, true, false, false, false, queue); err != nil {
		return err
	}
	if err := channel.Qos(16, 0, false); err != nil {
		return err
	}
	deliveries, err := channel.Consume(consumer, "", false, false, false, false, nil)
	if err != nil {
		return err
	}
	hours := time.NewTicker(time.Hour)
	for tick := time.NewTimer(0); ; {
		select {
		case <-hours.C:
			if err := Maintain(ctx, conn); err != nil {
				return err
			}
		case <-tick.C:
			for found := true; found; {
				if found, err = Redrive(ctx, conn, handler); err != nil {
					return err
				}
			}
			tick.Reset(5 * time.Second)
		case delivery, ok := <-deliveries:
			if !ok {
				return fmt.Errorf("RabbitMQ ended the consumer")
			}
			message, pause := Read(delivery), time.Second
			outcome, err := Apply(ctx, conn, message, handler)
			for ; err == nil && outcome == "again"; pause = min(2*pause, time.Minute) {
				time.Sleep(pause)
				outcome, err = Apply(ctx, conn, message, handler)
			}
			if err != nil {
				return err
			}
			// After the commit, never before it.
			if err := delivery.Ack(false); err != nil {
				return err
			}
			fmt.Println(delivery.MessageId, outcome)
		}
	}
}

func main() {
	ctx := context.Background()
	conn, err := Connect(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	if len(os.Args) < 2 {
		log.Fatal(consume(ctx, conn, Bill))
	}
	if len(os.Args) != 5 || os.Args[1] != "place" {
		log.Fatal("place ORDER CUSTOMER CENTS, or nothing to consume")
	}
	order, err := strconv.ParseInt(os.Args[2], 10, 64)
	if err != nil {
		log.Fatal(err)
	}
	cents, err := strconv.ParseInt(os.Args[4], 10, 64)
	if err != nil {
		log.Fatal(err)
	}
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		id, err := PlaceOrder(ctx, tx, order, os.Args[3], cents)
		fmt.Println(id)
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
}
