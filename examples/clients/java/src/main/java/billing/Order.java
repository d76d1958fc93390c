package billing;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;

/** An order that was placed, as both clients bill it. */
record Order(long number, String customer, long cents) {
    /** Reads the order in a payload. */
    static Order read(Message message) throws Message.Reject {
        String problem = "a field is missing, or of another type";
        try {
            JsonNode order = CloudEvent.JSON.readTree(message.payload());
            JsonNode number = order.path("order");
            JsonNode customer = order.path("customer");
            JsonNode cents = order.path("cents");
            if (isLong(number) && customer.isTextual() && isLong(cents)) {
                return new Order(number.longValue(), customer.textValue(), cents.longValue());
            }
        } catch (IOException error) {
            problem = error.getMessage();
        }
        throw new Message.Reject("the payload is no order: " + problem);
    }

    /** Whether a number is an integer of 64 bits: of a larger one, longValue() returns the lowest. */
    private static boolean isLong(JsonNode value) {
        return value.isIntegralNumber() && value.canConvertToLong();
    }
}
