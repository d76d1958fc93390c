package billing;

import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.SQLException;

class JdbcTest extends ClientTest {
    @Override
    String consumer() {
        return "billing-jdbc";
    }

    @Override
    Guard guard(Behaviour behaviour) throws Exception {
        Connection connection = DriverManager.getConnection(URL);
        return new JdbcBilling(connection, consumer(), (tx, message) -> {
            switch (behaviour) {
                case FAIL -> throw new IllegalStateException("the printer burns");
                case REJECT -> throw new Message.Reject("no such\0customer");
                case SWALLOW -> {
                    try {
                        JdbcBilling.one(tx, "SELECT 1 / 0");
                    } catch (SQLException error) {
                        // Swallowed on purpose.
                    }
                }
                case BILL -> JdbcBilling.bill(tx, message);
                case KILL -> {
                    JdbcBilling.bill(tx, message);
                    kill(JdbcBilling.one(tx, "SELECT pg_backend_pid()"));
                }
                case HANG -> {
                    if (JdbcBilling.one(tx, "SHOW idle_in_transaction_session_timeout").equals("1min")) {
                        Object process = JdbcBilling.one(tx, "SELECT pg_backend_pid()");
                        JdbcBilling.one(tx, "SET LOCAL idle_in_transaction_session_timeout = '1ms'");
                        await(process);
                    }
                    JdbcBilling.bill(tx, message);
                }
                case ROLL_BACK -> {
                    JdbcBilling.bill(tx, message);
                    tx.rollback();
                }
                case ROLL_BACK_IN_SQL -> {
                    JdbcBilling.bill(tx, message);
                    JdbcBilling.one(tx, "ROLLBACK");
                }
                case COMMIT -> {
                    JdbcBilling.bill(tx, message);
                    tx.setAutoCommit(true); // Commits.
                }
            }
        });
    }

    @Override
    void place(long order, boolean fails) throws Exception {
        try (Connection connection = DriverManager.getConnection(URL)) {
            JdbcBilling.transaction(connection, () -> {
                JdbcBilling.placeOrder(connection, order, "ann", 1250);
                if (fails) {
                    throw new IllegalStateException("no stock");
                }
                return null;
            });
        }
    }
}
