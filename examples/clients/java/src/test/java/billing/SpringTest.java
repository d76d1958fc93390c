package billing;

import org.junit.jupiter.api.AfterAll;
import org.springframework.context.annotation.AnnotationConfigApplicationContext;
import org.springframework.dao.DataAccessException;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.jdbc.support.JdbcTransactionManager;
import org.springframework.transaction.interceptor.TransactionAspectSupport;
import org.springframework.transaction.support.TransactionTemplate;

class SpringTest extends ClientTest {
    private static final AnnotationConfigApplicationContext SPRING =
            new AnnotationConfigApplicationContext(SpringBilling.class);

    @AfterAll
    static void close() {
        SPRING.close();
    }

    @Override
    String consumer() {
        return SpringBilling.CONSUMER;
    }

    @Override
    Guard guard(Behaviour behaviour) {
        JdbcTemplate jdbc = SPRING.getBean(JdbcTemplate.class);
        SpringBilling.Inbox inbox = SPRING.getBean(SpringBilling.Inbox.class);
        return new SpringBilling.SpringGuard(inbox, jdbc, (tx, message) -> {
            switch (behaviour) {
                case FAIL -> throw new IllegalStateException("the printer burns");
                case REJECT -> throw new Message.Reject("no such\0customer");
                case SWALLOW -> {
                    try {
                        tx.queryForList("SELECT 1 / 0");
                    } catch (DataAccessException error) {
                        // Swallowed on purpose.
                    }
                }
                case BILL -> SpringBilling.bill(tx, message);
                case KILL -> {
                    SpringBilling.bill(tx, message);
                    kill(tx.queryForObject("SELECT pg_backend_pid()", Integer.class));
                }
                case HANG -> {
                    String limit = "SHOW idle_in_transaction_session_timeout";
                    if ("1min".equals(tx.queryForObject(limit, String.class))) {
                        Integer process = tx.queryForObject("SELECT pg_backend_pid()", Integer.class);
                        tx.execute("SET LOCAL idle_in_transaction_session_timeout = '1ms'");
                        await(process);
                    }
                    SpringBilling.bill(tx, message);
                }
                case ROLL_BACK -> {
                    SpringBilling.bill(tx, message);
                    TransactionAspectSupport.currentTransactionStatus().setRollbackOnly();
                }
                case ROLL_BACK_IN_SQL -> {
                    SpringBilling.bill(tx, message);
                    tx.execute("ROLLBACK");
                }
                case COMMIT -> {
                    SpringBilling.bill(tx, message);
                    tx.execute("COMMIT");
                }
            }
        });
    }

    /** The bean joins the transaction of its caller. */
    @Override
    void place(long order, boolean fails) {
        var transaction = new TransactionTemplate(SPRING.getBean(JdbcTransactionManager.class));
        transaction.executeWithoutResult(status -> {
            try {
                SPRING.getBean(SpringBilling.Orders.class).place(order, "ann", 1250);
            } catch (Exception error) {
                throw new IllegalStateException(error);
            }
            if (fails) {
                throw new IllegalStateException("no stock");
            }
        });
    }
}
