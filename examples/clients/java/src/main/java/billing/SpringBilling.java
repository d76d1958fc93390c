package billing;

import java.time.LocalDate;
import java.util.Map;
import java.util.UUID;
import javax.sql.DataSource;
import org.springframework.context.annotation.AnnotationConfigApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.jdbc.datasource.DriverManagerDataSource;
import org.springframework.jdbc.support.JdbcTransactionManager;
import org.springframework.transaction.annotation.EnableTransactionManagement;
import org.springframework.transaction.annotation.Transactional;
import org.springframework.transaction.interceptor.TransactionAspectSupport;

/** Bills orders: the same producer and consumer with Spring's JdbcTemplate and @Transactional. */
@Configuration
@EnableTransactionManagement
public class SpringBilling {
    static final String CONSUMER = System.getenv().getOrDefault("CONSUMER", "billing-spring");

    /** Has the effect of a message in the transaction of its inbox row. */
    public interface Handler {
        void handle(JdbcTemplate jdbc, Message message) throws Exception;
    }

    /** Transactions of an inbox. Spring begins and ends one around each call from outside. */
    @Transactional(rollbackFor = Exception.class)
    public static class Inbox {
        private final JdbcTemplate jdbc;

        public Inbox(JdbcTemplate jdbc) {
            this.jdbc = jdbc;
        }

        /** Admits a message and has its effect. */
        public String admit(Message m, Handler handler) throws Exception {
            String admit = "SELECT inbox_admit(?, ?, ?, ?, ?, ?) FROM " + Guard.IDLE;
            String verdict = jdbc.queryForObject(
                    admit, String.class, CONSUMER, m.id(), m.kind(), m.contentType(), m.payload(), m.source());
            if ("new".equals(verdict)) {
                handle(m, handler);
            }
            return verdict;
        }

        /** Takes a redrive that was begun, and has its effect. */
        public void redrive(Long request, Handler handler) throws Exception {
            String take = "SELECT * FROM inbox_take_redrive(?, ?), " + Guard.IDLE;
            for (Message message : jdbc.query(take, (row, n) -> JdbcBilling.message(row), CONSUMER, request)) {
                handle(message, handler);
            }
        }

        private void handle(Message message, Handler handler) throws Exception {
            handler.handle(jdbc, message);
            if (TransactionAspectSupport.currentTransactionStatus().isRollbackOnly()) {
                // Spring would roll back instead of COMMIT, and may raise nothing.
                throw new IllegalStateException("the handler set rollback-only: to undo an effect, throw");
            }
            jdbc.queryForList(Guard.FINISH, CONSUMER, message.id());
        }
    }

    /** A producer: the order and its event commit together. */
    @Transactional(rollbackFor = Exception.class)
    public static class Orders {
        private final JdbcTemplate jdbc;

        public Orders(JdbcTemplate jdbc) {
            this.jdbc = jdbc;
        }

        public UUID place(long order, String customer, long cents) throws Exception {
            jdbc.update("INSERT INTO orders VALUES (?, ?, ?)", order, customer, cents);
            Map<String, Object> placed = Map.of("order", order, "customer", customer, "cents", cents);
            String enqueue = "SELECT outbox_enqueue_json('orders', ?::jsonb, key => ?, kind => 'order.placed')";
            return jdbc.queryForObject(enqueue, UUID.class, JdbcBilling.JSON.writeValueAsString(placed), customer);
        }
    }

    /** The guard around the transactions: what it stores after a failure has one of its own. */
    public record SpringGuard(Inbox inbox, JdbcTemplate jdbc, Handler handler) implements Guard {
        @Override
        public String maintain(LocalDate today) {
            return jdbc.queryForObject(MAINTAIN, String.class, today);
        }

        @Override
        public String apply(Message m) throws Exception {
            String reason = "malformed";
            String error = m.problem();
            if (m.id() != null) {
                try {
                    reason = inbox.admit(m, handler);
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
                    Integer attempts = jdbc.queryForObject(count, Integer.class, CONSUMER, m.id(), error);
                    if (attempts < ATTEMPTS_MAX) {
                        return "again";
                    }
                }
            }
            String store =
                    "SELECT inbox_store_dead_letter(?, ?, ?, ?, ?, ?, ?, ?, ?, ?::jsonb, ?, ?)";
            jdbc.queryForObject(store, UUID.class, CONSUMER, m.id(), m.topic(), m.kind(), m.contentType(),
                    m.payload(), reason, error, m.key(), JdbcBilling.JSON.writeValueAsString(m.headers()),
                    m.source(), m.madeAt());
            return reason;
        }

        @Override
        public boolean redrive() throws Exception {
            String begin = "SELECT inbox_begin_redrive(?)";
            Long request = jdbc.queryForObject(begin, Long.class, CONSUMER);
            if (request == null) {
                return false;
            }
            try {
                inbox.redrive(request, handler);
            } catch (Exception failure) {
                if (Guard.isLost(failure)) {
                    throw failure;
                }
                String failed = "SELECT inbox_fail_redrive(?, ?, ?)";
                jdbc.queryForList(failed, CONSUMER, request, Message.clean(failure));
            }
            return true;
        }
    }

    /** The handler: an invoice and its event, in the transaction of the inbox row. */
    public static void bill(JdbcTemplate jdbc, Message message) throws Exception {
        if (!message.kind().equals("order.placed")) {
            throw new Message.Reject("no handler for " + message.kind());
        }
        Order order = Order.read(message);
        String customer = order.customer();
        if (!jdbc.queryForList("SELECT FROM blocked_customer WHERE name = ?", customer).isEmpty()) {
            throw new Message.Reject("customer " + customer + " is blocked");
        }
        String insert = "INSERT INTO invoice (message_id, order_id, customer, cents) VALUES (?, ?, ?, ?)";
        jdbc.update(insert, message.id(), order.number(), customer, order.cents());
        String enqueue = "SELECT outbox_enqueue_json('invoices', ?::jsonb, key => ?, kind => 'invoice.issued')";
        String invoice = JdbcBilling.JSON.writeValueAsString(Map.of("order", order.number()));
        jdbc.queryForList(enqueue, invoice, customer);
    }

    @Bean
    DataSource database() {
        return new DriverManagerDataSource(Guard.jdbcUrl(System.getenv("DATABASE_URL")));
    }

    @Bean
    JdbcTransactionManager transactionManager(DataSource database) {
        return new JdbcTransactionManager(database);
    }

    @Bean
    JdbcTemplate jdbc(DataSource database) {
        return new JdbcTemplate(database);
    }

    @Bean
    Inbox inbox(JdbcTemplate jdbc) {
        return new Inbox(jdbc);
    }

    @Bean
    Orders orders(JdbcTemplate jdbc) {
        return new Orders(jdbc);
    }

    public static void main(String[] arguments) throws Exception {
        try (var spring = new AnnotationConfigApplicationContext(SpringBilling.class)) {
            if (arguments.length > 0) { // place ORDER CUSTOMER CENTS
                long cents = Long.parseLong(arguments[3]);
                Orders orders = spring.getBean(Orders.class);
                System.out.println(orders.place(Long.parseLong(arguments[1]), arguments[2], cents));
                return;
            }
            Inbox inbox = spring.getBean(Inbox.class);
            new SpringGuard(inbox, spring.getBean(JdbcTemplate.class), SpringBilling::bill).consume(CONSUMER);
        }
    }
}
