package billing;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.time.LocalDate;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.Callable;

/** Bills orders: a producer and a consumer in Java, with JDBC. */
public final class JdbcBilling implements Guard {
    /** Has the effect of a message in the transaction of its inbox row. */
    public interface Handler {
        void handle(Connection tx, Message message) throws Exception;
    }

    static final ObjectMapper JSON = new ObjectMapper();

    private final Connection connection;
    private final String consumer;
    private final Handler handler;

    public JdbcBilling(Connection connection, String consumer, Handler handler) {
        this.connection = connection;
        this.consumer = consumer;
        this.handler = handler;
    }

    static Object one(Connection connection, String sql, Object... values) throws SQLException {
        try (PreparedStatement statement = connection.prepareStatement(sql)) {
            for (int at = 0; at < values.length; at++) {
                statement.setObject(at + 1, values[at]);
            }
            if (!statement.execute()) {
                return null;
            }
            try (ResultSet rows = statement.getResultSet()) {
                return rows.next() ? rows.getObject(1) : null;
            }
        }
    }

    /** Runs a block in a transaction. */
    static <T> T transaction(Connection connection, Callable<T> block) throws Exception {
        connection.setAutoCommit(false);
        try {
            T result = block.call();
            connection.commit(); // Fails if an error of the database was swallowed.
            connection.setAutoCommit(true);
            return result;
        } catch (Exception error) {
            if (!Guard.isLost(error)) {
                connection.setAutoCommit(false); // The block may have changed it.
                connection.rollback();
                connection.setAutoCommit(true);
            }
            throw error;
        }
    }

    private void handle(Message message) throws Exception {
        handler.handle(connection, message);
        one(connection, FINISH, consumer, message.id());
    }

    @Override
    public String maintain(LocalDate today) throws SQLException {
        return (String) one(connection, MAINTAIN, today);
    }

    @Override
    public String apply(Message m) throws Exception {
        String reason = "malformed";
        String error = m.problem();
        if (m.id() != null) {
            try {
                Object[] content = {consumer, m.id(), m.kind(), m.contentType(), m.payload(), m.source()};
                reason = transaction(connection, () -> {
                    String admit = "SELECT inbox_admit(?, ?, ?, ?, ?, ?) FROM " + IDLE;
                    Object verdict = one(connection, admit, content);
                    if (verdict.equals("new")) {
                        handle(m);
                    }
                    return verdict.toString();
                });
                if (DONE.contains(reason)) {
                    return reason;
                }
                error = "the inbox refused it: " + reason;
            } catch (Message.Reject refusal) {
                reason = "rejected";
                error = Message.clean(refusal.getMessage());
            } catch (Exception failure) {
                if (Guard.isLost(failure)) {
                    throw failure;
                }
                reason = "poison";
                error = Message.clean(failure);
                String count = "SELECT inbox_count_failure(?, ?, ?)";
                if ((Integer) one(connection, count, consumer, m.id(), error) < ATTEMPTS_MAX) {
                    return "again";
                }
            }
        }
        String store = "SELECT inbox_store_dead_letter(?, ?, ?, ?, ?, ?, ?, ?, ?, ?::jsonb, ?, ?)";
        one(connection, store, consumer, m.id(), m.topic(), m.kind(), m.contentType(), m.payload(), reason,
                error, m.key(), JSON.writeValueAsString(m.headers()), m.source(), m.madeAt());
        return reason;
    }

    @Override
    public boolean redrive() throws Exception {
        Object request = one(connection, "SELECT inbox_begin_redrive(?)", consumer);
        if (request == null) {
            return false;
        }
        try {
            return transaction(connection, () -> {
                String take = "SELECT * FROM inbox_take_redrive(?, ?), " + IDLE;
                try (PreparedStatement statement = connection.prepareStatement(take)) {
                    statement.setString(1, consumer);
                    statement.setObject(2, request);
                    ResultSet row = statement.executeQuery();
                    if (row.next()) {
                        handle(message(row));
                    }
                    return true;
                }
            });
        } catch (Exception failure) {
            if (Guard.isLost(failure)) {
                throw failure;
            }
            one(connection, "SELECT inbox_fail_redrive(?, ?, ?)", consumer, request, Message.clean(failure));
            return true;
        }
    }

    /** Reads a row of inbox_take_redrive. */
    static Message message(ResultSet row) throws SQLException {
        Map<String, String> headers;
        try {
            headers = JSON.readerForMapOf(String.class).readValue(row.getString("headers"));
        } catch (java.io.IOException error) {
            throw new SQLException(error);
        }
        UUID id = row.getObject("message_id", UUID.class);
        return new Message(row.getString("topic"), row.getBytes("payload"), id, row.getString("kind"),
                row.getString("content_type"), row.getString("key"), row.getString("source"), null, headers, "");
    }

    /** Stores an order and enqueues its event, in the transaction of the caller. */
    public static UUID placeOrder(Connection tx, long order, String customer, long cents) throws Exception {
        one(tx, "INSERT INTO orders VALUES (?, ?, ?)", order, customer, cents);
        Map<String, Object> placed = Map.of("order", order, "customer", customer, "cents", cents);
        String enqueue = "SELECT outbox_enqueue_json('orders', ?::jsonb, key => ?, kind => 'order.placed')";
        return (UUID) one(tx, enqueue, JSON.writeValueAsString(placed), customer);
    }

    /** The handler: an invoice and its event, in the transaction of the inbox row. */
    public static void bill(Connection tx, Message message) throws Exception {
        if (!message.kind().equals("order.placed")) {
            throw new Message.Reject("no handler for " + message.kind());
        }
        Order order = Order.read(message);
        String customer = order.customer();
        if (one(tx, "SELECT name FROM blocked_customer WHERE name = ?", customer) != null) {
            throw new Message.Reject("customer " + customer + " is blocked");
        }
        String insert = "INSERT INTO invoice (message_id, order_id, customer, cents) VALUES (?, ?, ?, ?)";
        one(tx, insert, message.id(), order.number(), customer, order.cents());
        String enqueue = "SELECT outbox_enqueue_json('invoices', ?::jsonb, key => ?, kind => 'invoice.issued')";
        one(tx, enqueue, JSON.writeValueAsString(Map.of("order", order.number())), customer);
    }

    public static void main(String[] arguments) throws Exception {
        Connection connection = DriverManager.getConnection(Guard.jdbcUrl(System.getenv("DATABASE_URL")));
        if (arguments.length > 0) { // place ORDER CUSTOMER CENTS
            long order = Long.parseLong(arguments[1]);
            long cents = Long.parseLong(arguments[3]);
            Callable<UUID> place = () -> placeOrder(connection, order, arguments[2], cents);
            System.out.println(transaction(connection, place));
            return;
        }
        String consumer = System.getenv().getOrDefault("CONSUMER", "billing-jdbc");
        new JdbcBilling(connection, consumer, JdbcBilling::bill).consume(consumer);
    }
}
