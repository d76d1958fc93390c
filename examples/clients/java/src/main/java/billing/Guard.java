package billing;

import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.Delivery;
import java.net.URI;
import java.sql.SQLException;
import java.time.LocalDate;
import java.time.ZoneOffset;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import javax.net.ssl.SSLContext;

/** The inbox guard around a handler, and the loop that feeds it from RabbitMQ. */
public interface Guard {
    int ATTEMPTS_MAX = 10;

    /**
     * What the queue is declared with. One active consumer keeps the order of keys. RabbitMQ 4 drops
     * a message of a quorum queue after 20 deliveries, and each start of this process can be one: the
     * limit is out of reach.
     */
    Map<String, Object> QUEUE =
            Map.of("x-queue-type", "quorum", "x-delivery-limit", 1_000_000, "x-single-active-consumer", true);

    /** The outcomes after which nothing is left to do. */
    List<String> DONE = List.of("new", "duplicate", "dead_letter");

    /** Makes and forgets the days of the inbox. What it cannot do waits for the next hour. */
    String MAINTAIN = "SELECT string_agg(p, '; ') FROM inbox_maintain(?) AS p";

    /** Proves that this transaction is the one that admitted the message. */
    String FINISH = "SELECT inbox_finish(?, ?)";

    /**
     * A handler that hangs keeps its message from other processes for a minute: then its session is
     * ended.
     */
    String IDLE = "set_config('idle_in_transaction_session_timeout', '60s', true)";

    /** Runs {@link #MAINTAIN} with the date of today. Returns its problems, or null. */
    String maintain(LocalDate today) throws Exception;

    /** Has the effect of a message once. Any answer but {@code again} permits its acknowledgement. */
    String apply(Message message) throws Exception;

    /** Carries out a redrive that an operator asked for (relay dead requeue), if there is one. */
    boolean redrive() throws Exception;

    /** Whether a connection failed, and not the message. */
    static boolean isLost(Throwable error) {
        for (; error != null; error = error.getCause()) {
            if (error instanceof SQLException sql && sql.getSQLState() != null) {
                return sql.getSQLState().matches("08...|57P..|25P03"); // 25P03 is the limit of IDLE.
            }
        }
        return false;
    }

    /**
     * Returns the address that JDBC expects: user and password are parameters, and others such as
     * sslmode are kept. A server that disappears silently is noticed after five minutes, and no
     * statement may take longer.
     */
    static String jdbcUrl(String url) {
        URI uri = URI.create(url);
        String port = uri.getPort() < 0 ? "" : ":" + uri.getPort();
        String jdbc = "jdbc:postgresql://" + uri.getHost() + port + uri.getPath();
        jdbc += "?tcpKeepAlive=true&socketTimeout=300";
        if (uri.getRawUserInfo() != null) {
            String[] login = uri.getRawUserInfo().replace("+", "%2B").replace("&", "%26").split(":", 2);
            jdbc += "&user=" + login[0] + (login.length < 2 ? "" : "&password=" + login[1]);
        }
        return uri.getRawQuery() == null ? jdbc : jdbc + "&" + uri.getRawQuery();
    }

    /** Returns a connection to RabbitMQ. With amqps, its certificate and its name are verified. */
    static Connection broker(String url) throws Exception {
        ConnectionFactory factory = new ConnectionFactory();
        factory.setUri(url);
        if (factory.isSSL()) { // setUri trusts every certificate.
            factory.useSslProtocol(SSLContext.getDefault());
            factory.enableHostnameVerification();
        }
        factory.setAutomaticRecoveryEnabled(false);
        return factory.newConnection();
    }

    /** Consumes until the first error of database or broker. A supervisor starts it again. */
    default void consume(String queue) throws Exception {
        // Before the first delivery: on a database that refuses work, the process ends without one.
        maintain();
        redrive();
        // The threads of an open connection would keep the process alive after an error.
        try (Connection broker = broker(System.getenv("RABBITMQ_URL"))) {
            consume(queue, broker.createChannel());
        }
    }

    private void maintain() throws Exception {
        String problems = maintain(LocalDate.now(ZoneOffset.UTC));
        if (problems != null) {
            System.err.println("inbox: " + problems);
        }
    }

    private void consume(String queue, Channel channel) throws Exception {
        channel.queueDeclare(queue, true, false, false, QUEUE); // It is bound to the relay's exchange.
        channel.basicQos(16);
        BlockingQueue<Delivery> waiting = new LinkedBlockingQueue<>();
        channel.basicConsume(queue, (tag, delivery) -> waiting.add(delivery), tag -> channel.abort());
        long maintenanceDue = System.nanoTime() + TimeUnit.HOURS.toNanos(1);
        for (long due = System.nanoTime(); channel.isOpen(); ) {
            if (System.nanoTime() - maintenanceDue >= 0) {
                maintain();
                maintenanceDue = System.nanoTime() + TimeUnit.HOURS.toNanos(1);
            }
            if (System.nanoTime() - due >= 0) {
                while (redrive()) {}
                due = System.nanoTime() + TimeUnit.SECONDS.toNanos(5);
            }
            Delivery delivery = waiting.poll(1, TimeUnit.SECONDS);
            if (delivery == null) {
                continue;
            }
            String topic = delivery.getEnvelope().getRoutingKey();
            Message message = Message.read(topic, delivery.getProperties(), delivery.getBody());
            String outcome;
            for (long pause = 1; (outcome = apply(message)).equals("again"); pause = Math.min(2 * pause, 60)) {
                TimeUnit.SECONDS.sleep(pause);
            }
            channel.basicAck(delivery.getEnvelope().getDeliveryTag(), false); // After the commit.
            System.out.println(message.id() + " " + outcome);
        }
        throw new IllegalStateException("RabbitMQ ended the consumer: " + channel.getCloseReason());
    }
}
