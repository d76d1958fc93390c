package billing;

import com.rabbitmq.client.Channel;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.Delivery;
import java.net.URI;
import java.sql.SQLException;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/** The inbox guard around a handler, and the loop that feeds it from RabbitMQ. */
public interface Guard {
    int ATTEMPTS_MAX = 10;

    /** The outcomes after which nothing is left to do. */
    List<String> DONE = List.of("new", "duplicate", "dead_letter");

    /** Makes the days that rows of the inbox lie in. Runs at least once a day. */
    void createDays() throws Exception;

    /** Has the effect of a message once. Any answer but {@code again} permits its acknowledgement. */
    String apply(Message message) throws Exception;

    /** Carries out a redrive that an operator asked for (relay dead requeue), if there is one. */
    boolean redrive() throws Exception;

    /** Whether a connection failed, and not the message. */
    static boolean isLost(Throwable error) {
        for (; error != null; error = error.getCause()) {
            if (error instanceof SQLException sql && sql.getSQLState() != null) {
                return sql.getSQLState().startsWith("08") || sql.getSQLState().startsWith("57P");
            }
        }
        return false;
    }

    /** Returns the address that JDBC expects, with user and password as its parameters. */
    static String jdbcUrl(String url) {
        URI uri = URI.create(url);
        String login = uri.getUserInfo() == null ? "" : "?user=" + uri.getUserInfo();
        String port = uri.getPort() < 0 ? "" : ":" + uri.getPort();
        String password = login.replaceFirst(":", "&password=");
        return "jdbc:postgresql://" + uri.getHost() + port + uri.getPath() + password;
    }

    /** Consumes until the first error of database or broker. A supervisor starts it again. */
    default void consume(String queue) throws Exception {
        ConnectionFactory factory = new ConnectionFactory();
        factory.setUri(System.getenv("RABBITMQ_URL"));
        factory.setAutomaticRecoveryEnabled(false);
        Channel channel = factory.newConnection().createChannel();
        // One active consumer keeps the order of keys. The queue is bound to the relay's exchange.
        channel.queueDeclare(queue, true, false, false, Map.of("x-single-active-consumer", true));
        channel.basicQos(16);
        BlockingQueue<Delivery> waiting = new LinkedBlockingQueue<>();
        channel.basicConsume(queue, (tag, delivery) -> waiting.add(delivery), tag -> channel.abort());
        long daysDue = System.nanoTime();
        for (long due = daysDue; channel.isOpen(); ) {
            if (System.nanoTime() - daysDue >= 0) {
                createDays();
                daysDue = System.nanoTime() + TimeUnit.HOURS.toNanos(1);
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
